#!/bin/bash
# Captures a Linux kernel client at work and takes one call and its reply of each operation out of it: see README.md.
# usage: capture.sh DIRECTORY-FOR-THE-RESULT   (as root, after `cargo build -p forebay-node -p forebay-chaos --examples --bins`)
set -euo pipefail
result=$(readlink -f "$1")
cd "$(dirname "$(readlink -f "$0")")/../../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/data" && chmod 777 "$scratch/data" "$scratch"

script=$(cat <<'GUEST'
work() {
	cd "$1"
	mkdir d; echo hello >d/f; cat d/f; ls -la d; ln -s f d/s; readlink d/s; ln d/f d/h; mv d/h d/m; chmod 600 d/m; mkfifo d/p
	python3 - <<'PYTHON'
import fcntl, os
f = os.open("d/l", os.O_RDWR | os.O_CREAT, 0o644)
os.write(f, b"x" * 100)
fcntl.lockf(f, fcntl.LOCK_EX, 10)
if os.fork() == 0:
    g = os.open("d/l", os.O_RDONLY)
    try: fcntl.lockf(g, fcntl.LOCK_SH | fcntl.LOCK_NB, 5)
    except OSError as error: print(error)
    os._exit(0)
os.wait()
import struct
print(struct.unpack("hhqqi", fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 50, 5, 0)))[0])
fcntl.lockf(f, fcntl.LOCK_UN, 10)
w = os.open("d/l", os.O_WRONLY); r = os.open("d/l", os.O_RDONLY)
os.close(f); os.close(w); os.close(r)
h = os.open("d/new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.pwrite(h, b"data", 1 << 16); os.fsync(h)
def attempt(work):
    try: print(work())
    except OSError as error: print(error)
attempt(lambda: os.lseek(h, 0, os.SEEK_DATA))
attempt(lambda: os.lseek(h, 0, os.SEEK_HOLE))
attempt(lambda: os.posix_fallocate(h, 0, 8192))
t = os.open("d/copy", os.O_RDWR | os.O_CREAT, 0o600)
attempt(lambda: os.copy_file_range(h, t, 4096))
attempt(lambda: os.setxattr("d/new", "user.one", b"value"))
open("/proc/sys/vm/drop_caches", "w").write("3")
attempt(lambda: os.getxattr("d/new", "user.one"))
attempt(lambda: os.listxattr("d/new"))
attempt(lambda: os.removexattr("d/new", "user.one"))
attempt(lambda: os.utime("d/new", (1, 2)))
attempt(lambda: os.truncate("d/new", 10))
PYTHON
	fallocate -p -o 0 -l 4096 d/copy
	df .; stat d/f
	echo 3 >/proc/sys/vm/drop_caches
	cat d/f d/new >/dev/null; ls -l d
	rm -r d
	cd /
}
mount_nfs 4.2 /data /mnt/two; work /mnt/two; umount /mnt/two; sleep 1
mount_nfs 4.1 /data /mnt/one; work /mnt/one; umount /mnt/one; sleep 1
finish
GUEST
)
bin=${CARGO_TARGET_DIR:-target}/debug
FOREBAY_BIN=$bin/forebay "$bin/examples/guest" "$scratch/data" "$script" &
guest=$!
until ip netns list | grep -q "^fblab$guest-"; do sleep 0.01; done
net=$(ip netns list | grep -o "^fblab$guest-[0-9]*")
until ip -n "$net" link show lab0 up 2>/dev/null | grep -q lab0; do sleep 0.01; done
ip netns exec "$net" dumpcap -q -P -i lab0 -w "$scratch/pcap" &
capture=$!
wait "$guest" || echo "the guest's checks failed" >&2
kill "$capture" 2>/dev/null || true
wait "$capture" || true
"$bin/examples/golden" "$scratch/pcap" "$result"
