# One client, real programs: a directory of 10,000 names that changes while it is listed, git, and fio that verifies what it wrote.
mount_nfs "$VERSION" /data /mnt/data

/usr/bin/python3 - >/tmp/listing 2>&1 <<'PYTHON'
import os, threading, time
directory = "/mnt/data/crowd"
stop, made = threading.Event(), [0]
def churn():
    while not stop.is_set():
        names = [f"{directory}/guest-{made[0]}-{i}" for i in range(20)]
        for name in names: os.close(os.open(name, os.O_CREAT | os.O_EXCL, 0o644))
        for name in names: os.unlink(name)
        made[0] += 20
stay = {f"stay-{i:05}" for i in range(10000)}
thread = threading.Thread(target=churn)
thread.start()
problem, turn = None, 0
try:
    # Often enough that names come and go during listings, however slow the machine.
    while not problem and (turn < 6 or made[0] < 200 and turn < 60):
        turn += 1
        with open("/proc/sys/vm/drop_caches", "w") as f: f.write("3\n")
        began, names = time.time(), []
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
        once = set(names)
        twice = len(names) - len(once)
        print(f"listing {turn}: {len(names)} names in {time.time() - began:.2f} s")
        if stay - once: problem = f"{len(stay - once)} names missing, such as {min(stay - once)}"
        if twice: problem = f"{twice} names came twice"
finally:
    stop.set(); thread.join()
print(f"{made[0]} names came and went meanwhile")
print(problem or "whole")
PYTHON
cat /tmp/listing
same "10,000 names are listed once each while others come and go" whole "$(tail -n 1 /tmp/listing)"
same "nothing stays of what went" 0 "$(ls /mnt/data/crowd | grep -c guest)"

cat >"$HOME/.gitconfig" <<'GITCONFIG'
[user]
	name = Guest
	email = guest@example.com
[safe]
	directory = *
[gc]
	auto = 0
GITCONFIG
cd /mnt/data || exit 98
check "git clone" git clone -q origin.git clone
cd clone || exit 98
check "git fsck" git fsck --strict --full
same "git status is clean" "" "$(git status --porcelain)"
same "all commits are there" "$COMMITS" "$(git rev-list --count HEAD)"
echo change >>file-0
check "git commit" git commit -q -a -m "From a guest"
check "git push" git push -q origin HEAD
check "git gc" git gc -q
check "git fsck after gc" git fsck --strict --full
same "origin has the commit" "From a guest" "$(git -C ../origin.git log -1 --format=%s)"
cd /

check "fio writes and verifies" fio --name=verify --directory=/mnt/data --size=16m --bs=8k --rw=randwrite --ioengine=psync \
	--verify=crc32c --do_verify=1 --verify_fatal=1 --end_fsync=1 --invalidate=1 --thread --output=/tmp/fio
check "fio mixes reads and writes" fio --name=mixed --directory=/mnt/data --size=8m --bsrange=512-64k --bs_unaligned --rw=randrw \
	--ioengine=psync --verify=crc32c --verify_fatal=1 --thread --output=/tmp/fio
cd /
check "unmount" umount /mnt/data
finish
