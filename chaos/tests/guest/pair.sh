# Two clients on one directory; ROLE is a or b. The test tells each when it is its turn (await), and reads what they say (MARK).
mount_nfs "$VERSION" /data /mnt/data
cd /mnt/data || exit 98

# A process that takes, tries and drops record locks as it is told, one word a line; it answers each with a line.
cat >/tmp/locker <<'PYTHON'
import fcntl, os, sys
fd = os.open("/mnt/data/records", os.O_RDWR | os.O_CREAT, 0o666)
for line in sys.stdin:
    verb, start, length = line.split()
    how = {"write": fcntl.LOCK_EX | fcntl.LOCK_NB, "read": fcntl.LOCK_SH | fcntl.LOCK_NB, "wait": fcntl.LOCK_EX, "drop": fcntl.LOCK_UN}[verb]
    try:
        fcntl.lockf(fd, how, int(length), int(start))
        print("got", flush=True)
    except OSError as e:
        print({11: "busy", 13: "busy"}.get(e.errno, e), flush=True)
PYTHON
mkfifo /tmp/orders /tmp/answers
/usr/bin/python3 /tmp/locker </tmp/orders >/tmp/answers 2>&1 &
exec 7>/tmp/orders 8</tmp/answers
record() {
	echo "$*" >&7
	read -r _answer <&8
	echo "$_answer"
}

locks_a() {
	: >whole
	exec 9<>whole
	check "flock" flock -n 9
	same "fcntl: a range" got "$(record write 0 100)"
	same "fcntl: a shared range" got "$(record read 200 100)"
	echo "MARK locked"
	await release
	date +%s.%N >/mnt/data/released
	check "flock drops" flock -u 9
	same "fcntl drops" got "$(record drop 0 100)"
	echo "MARK released"
	await busy-again
	refused "flock is the other's now" "" flock -n 9
	same "fcntl is the other's now" busy "$(record write 50 1)"
	echo "MARK tried"
}

locks_b() {
	await try
	exec 9<>whole
	refused "flock is taken" "" flock -n 9
	refused "flock is taken, shared too" "" flock -n -s 9
	same "fcntl: the range is taken" busy "$(record write 0 100)"
	same "fcntl: its last byte is taken" busy "$(record read 99 1)"
	same "fcntl: the byte after it is free" got "$(record write 100 100)"
	same "fcntl: shared ranges go together" got "$(record read 200 100)"
	same "fcntl: a shared range is not written" busy "$(record write 250 10)"
	echo "MARK waiting"
	check "flock that waits is granted" flock -w 60 9
	check "not before it was free" test -e released
	same "fcntl that waits is granted" got "$(record wait 0 100)"
	echo "MARK granted"
	await drop
}

count() {
	{
		echo ".bail on"
		echo ".timeout 60000"
		for _ in $(seq "$INCREMENTS"); do echo "begin immediate; update counter set n = n + 1; commit;"; done
	} >/tmp/sql
	check "sqlite3 counts to $INCREMENTS beside the other client" sqlite3 shared.db ".read /tmp/sql"
}

locks_"$ROLE"
[ "$ROLE" = a ] && check "sqlite3 makes a database" sqlite3 shared.db \
	"pragma journal_mode = delete; create table counter (n integer); insert into counter values (0);"
echo "MARK ready"
await count
count
echo "MARK counted"
await judge
same "no increment is lost" $((2 * INCREMENTS)) "$(sqlite3 shared.db 'select n from counter')"
same "sqlite3 finds the database whole" ok "$(sqlite3 shared.db 'pragma integrity_check')"
exec 7>&- 8<&- 9>&-
cd /
wait
check "unmount" umount /mnt/data
finish
