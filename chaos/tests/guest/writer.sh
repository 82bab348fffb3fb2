# One client that appends numbered lines, each made durable before it counts as written, while its server comes and goes. It says
# `acked N` after each line. It holds a record lock all along: a client that cannot reclaim its lock gets EIO from the next write.
mount_nfs "$VERSION" /data /mnt/data
cat >/tmp/writer <<'PYTHON'
import fcntl, os, time
fd = os.open("/mnt/data/ledger", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
acked, longest = [], 0.0
while not os.path.exists("/run/lab/stop"):
    line = f"line {len(acked)}\n"
    began = time.monotonic()
    try:
        written = os.write(fd, line.encode())
        os.fsync(fd)
    except OSError as error:
        print(f"FAIL write {len(acked)}: {error}", flush=True)
        raise SystemExit(1)
    assert written == len(line)
    longest = max(longest, time.monotonic() - began)
    acked.append(line)
    print(f"acked {len(acked)}", flush=True)
    time.sleep(0.02)
os.close(fd)
print(f"the longest write took {longest:.1f} s")
with open("/proc/sys/vm/drop_caches", "w") as f: f.write("3\n")
found = open("/mnt/data/ledger").readlines()
if found != acked:
    print(f"FAIL ledger: {len(acked)} lines acknowledged, {len(found)} lines in the file, {len(set(acked) - set(found))} lost")
    raise SystemExit(1)
PYTHON
if /usr/bin/python3 /tmp/writer; then ok "every acknowledged line is in the file, once and in order"; else bad "the writer" "see above"; fi
check "a new file" sh -c 'echo x >/mnt/data/after && grep -q x /mnt/data/after'
check "unmount" umount /mnt/data
finish
