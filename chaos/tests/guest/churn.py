# Changes a directory at random, as others do at the same time: churn.py DIRECTORY SEED CHANGES. What is gone or in the way is nothing to
# complain of; anything else is.
import errno, os, random, sys

directory, seed, changes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
expected = (errno.ENOENT, errno.ESTALE, errno.EEXIST)


def name():
    return os.path.join(directory, "file-%d" % random.randrange(1, 13))


def change():
    what = random.randrange(20)
    if what < 12:
        fd = os.open(name(), os.O_RDWR | (os.O_CREAT if what < 4 else 0), 0o644)
        try:
            if random.randrange(4) == 0:
                os.ftruncate(fd, random.randrange(150000))
            os.pwrite(fd, random.randbytes(random.randrange(1, 9000)), random.randrange(120000))
        finally:
            os.close(fd)
    elif what < 17:
        with open(name(), "rb") as file:
            file.read()
    elif what < 19:
        os.rename(name(), name())
    else:
        os.unlink(name())


for _ in range(changes):
    try:
        change()
    except OSError as error:
        if error.errno not in expected:
            raise
