# One client, 4.1 and 4.2 side by side: what a file, a directory and their attributes must do. SERVER is the server's address.

# counted OPERATION DIRECTORY: how often this mount has sent that operation.
counted() {
	awk -v at="$2" -v op="$1:" '$1 == "device" { here = ($5 == at) } here && $1 == op { print $2 }' /proc/self/mountstats
}

# used NAME OPERATION DIRECTORY: the operation went to the server, and was not done locally instead.
used() {
	_count=$(counted "$2" "$3")
	if [ "${_count:-0}" -gt 0 ]; then ok "$1"; else bad "$1" "the client sent no $2"; fi
}

# fsid DIRECTORY: what the server said of the file system mounted there.
fsid() {
	awk -v device="$(mountpoint -d "$1")" '$4 == device { print $5 }' /proc/fs/nfsfs/volumes
}

plain_files() {
	printf 'first line\n' >one
	same "$v read what was written" "first line" "$(cat one)"
	printf 'second line\n' >>one
	same "$v append" "first line second line" "$(tr '\n' ' ' <one | sed 's/ $//')"
	truncate -s 5 one
	same "$v truncate shorter" "first" "$(cat one)"
	truncate -s 100 one
	same "$v truncate longer reads zeros" "95" "$(tail -c 95 one | tr -d -c '\000' | wc -c)"
	head -c 5000000 /dev/urandom >big
	cp big copy
	echo 3 >/proc/sys/vm/drop_caches
	check "$v five megabytes come back equal" cmp big copy
	check "$v rename" mv one two
	check "$v the old name is gone" test ! -e one
	echo other >three
	check "$v rename over a file" mv two three
	same "$v rename keeps the moved content" 100 "$(stat -c %s three)"
	mkdir sub sub/deep
	check "$v rename into a directory" mv three sub/deep/three
	refused "$v rename of a directory into itself" "subdirectory of itself|Invalid" mv sub sub/deep/sub
	refused "$v rmdir of a full directory" "not empty" rmdir sub
	check "$v rm -r" rm -r sub
	refused "$v exclusive create of what exists" "exists" sh -c 'set -C; : >big'
	refused "$v a name of 256 bytes" "too long" touch "$(printf '%0256d' 0)"
	check "$v a name of 255 bytes" touch "$(printf '%0255d' 0)"
	check "$v a name in UTF-8" touch "naïve-文件-🗂"
	check "$v a name with odd bytes" touch "a 'b' \"c\" \\ ;*?"
	same "$v both names are listed" 2 "$(ls | grep -c -e naïve -e "'b'")"
	exec 9>unlinked
	echo before >&9
	rm unlinked
	echo after >&9
	same "$v an unlinked open file is still whole" "before after" "$(tr '\n' ' ' </proc/self/fd/9 | sed 's/ $//')"
	exec 9>&-
	check "$v nothing is left of it" sh -c 'sleep 0.2; ! ls -a | grep -q nfs0'
}

links() {
	echo shared >original
	check "$v hard link" ln original hard
	same "$v hard link counts two" 2 "$(stat -c %h original)"
	same "$v hard link is one file" "$(stat -c %i original)" "$(stat -c %i hard)"
	echo more >>hard
	same "$v a write through one name shows in the other" "shared more" "$(tr '\n' ' ' <original | sed 's/ $//')"
	rm original
	same "$v one name less" 1 "$(stat -c %h hard)"
	check "$v symbolic link" ln -s hard soft
	same "$v readlink" hard "$(readlink soft)"
	same "$v a symbolic link is followed" "shared more" "$(tr '\n' ' ' <soft | sed 's/ $//')"
	ln -s nowhere dangling
	refused "$v a dangling link" "No such file" cat dangling
	_long=$(printf '%01000d' 7)
	ln -s "$_long" far
	same "$v a link of a thousand bytes" "$_long" "$(readlink far)"
	ln -s loop loop
	refused "$v a loop of links" "Too many levels" cat loop
	refused "$v a hard link to a directory" "not allowed|not permitted" ln -T . dirlink
}

special_files() {
	check "$v fifo" mkfifo pipe
	(echo through >pipe &)
	same "$v a fifo carries bytes" through "$(timeout 5 cat pipe)"
	check "$v socket" /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
	check "$v character device" mknod null c 1 3
	check "$v block device" mknod disk b 7 5
	same "$v types and numbers" "fifo|socket|character special file 1,3|block special file 7,5" \
		"$(stat -c %F pipe)|$(stat -c %F socket)|$(stat -c '%F %t,%T' null)|$(stat -c '%F %t,%T' disk)"
	refused "$v a device made by a user" "not permitted|denied" as 1001 mknod mine c 1 3
}

attributes() {
	echo x >owned
	same "$v a new file is root's" "0 0" "$(stat -c '%u %g' owned)"
	check "$v chown" chown 1001:2002 owned
	same "$v owner and group" "1001 2002" "$(stat -c '%u %g' owned)"
	check "$v chmod" chmod 2751 owned
	same "$v mode" 2751 "$(stat -c %a owned)"
	check "$v times to the nanosecond" touch -d '2001-02-03 04:05:06.123456789' owned
	same "$v times come back exactly" "2001-02-03 04:05:06.123456789 +0000" "$(TZ=UTC stat -c %y owned)"
	touch -a -d '1999-12-31 23:59:59.000000001' owned
	same "$v the two times are apart" "1999-12-31 23:59:59.000000001 +0000|2001-02-03 04:05:06.123456789 +0000" "$(TZ=UTC stat -c '%x|%y' owned)"
	check "$v a time before 1970" touch -d '1960-01-01 00:00:00.5' owned
	same "$v it comes back" "1960-01-01 00:00:00.500000000 +0000" "$(TZ=UTC stat -c %y owned)"
	_before=$(stat -c %z owned)
	sleep 0.02
	chmod 600 owned
	differ "$v a change of mode moves ctime" "$_before" "$(stat -c %z owned)"
	refused "$v chown by a user" "not permitted|denied" as 1001 chown 0 owned
	refused "$v chmod by another user" "not permitted|denied" as 1002 chmod 777 owned
	echo x >program
	chmod 6777 program
	as 1001 sh -c 'echo y >>program'
	same "$v a user's write clears set-uid and set-gid" 777 "$(stat -c %a program)"
	chown 1001:1001 program
	chmod 4755 program
	chown 1002 program
	same "$v root's chown clears set-uid" 755 "$(stat -c %a program)"
	mkdir grouped
	chown 0:2002 grouped
	chmod 2777 grouped
	as 1001 touch grouped/child
	same "$v a set-gid directory hands its group on" 2002 "$(stat -c %g grouped/child)"
	(umask 027 && touch masked)
	same "$v umask" 640 "$(stat -c %a masked)"
	same "$v links of a directory with two directories" 4 "$(mkdir -p tree/a tree/b && stat -c %h tree)"
	/usr/bin/python3 - "$HOST_TOTAL" >/tmp/df 2>&1 <<-'PYTHON'
		import os, sys
		s = os.statvfs(".")
		total, host = s.f_blocks * s.f_frsize, int(sys.argv[1])
		assert abs(total - host) <= host // 100, f"{total} bytes here, {host} at the server"
		assert 0 < s.f_bavail <= s.f_bfree <= s.f_blocks, f"{s}"
		assert 0 < s.f_ffree <= s.f_files, f"{s}"
		assert s.f_namemax == 255, f"{s}"
	PYTHON
	same "$v df is the server's file system" "" "$(tail -n 1 /tmp/df)"
	check "$v df prints a line" df -k .
}

permissions() {
	echo secret >private
	chmod 600 private
	refused "$v another user's 0600 file, read" "denied" as 1001 cat private
	refused "$v another user's 0600 file, write" "denied" as 1001 sh -c 'echo >>private'
	chown 0:2000 private
	chmod 640 private
	refused "$v a user outside the group" "denied" as 1001 cat private
	same "$v a user whose second group it is" secret "$(setpriv --reuid 1001 --regid 1001 --groups 3000,2000 -- cat private)"
	_many=$(seq -s, 3001 3015)
	same "$v the same with sixteen groups" secret "$(setpriv --reuid 1001 --regid 1001 --groups "$_many,2000" -- cat private)"
	chmod 604 private
	refused "$v a group that may less than others" "denied" setpriv --reuid 1001 --regid 2000 --clear-groups -- cat private
	mkdir closed
	echo in >closed/file
	chmod 700 closed
	refused "$v a closed directory, list" "denied" as 1001 ls closed
	refused "$v a closed directory, pass" "denied" as 1001 cat closed/file
	chmod 711 closed
	same "$v a directory one may pass" in "$(as 1001 cat closed/file)"
	refused "$v but not list" "denied" as 1001 ls closed
	refused "$v or write" "denied" as 1001 touch closed/new
	mkdir shared
	chmod 1777 shared
	as 1001 touch shared/theirs
	same "$v a user's file is the user's" "1001 1001" "$(stat -c '%u %g' shared/theirs)"
	refused "$v sticky: another's file is not removed" "not permitted|denied" as 1002 rm -f shared/theirs
	refused "$v sticky: nor renamed" "not permitted|denied" as 1002 mv -f shared/theirs shared/mine
	check "$v sticky: one's own is" as 1001 rm shared/theirs
	as 1001 sh -c 'umask 777; echo written >shared/unreadable' 
	same "$v a file made without permissions is written by its maker" 8 "$(stat -c %s shared/unreadable)"
	echo '#!/bin/sh' >run
	chmod 711 run
	cp /usr/bin/true execute
	chmod 711 execute
	check "$v a file one may execute and not read" as 1001 ./execute
	chmod 700 execute
	refused "$v a file one may not execute" "denied" as 1001 ./execute
}

# What came with 4.2.
extensions() {
	/usr/bin/python3 >/tmp/sparse 2>&1 <<-'PYTHON'
		import os, errno
		failed = []
		def same(name, expected, found):
		    print(f"ok 4.2 {name}" if expected == found else f"FAIL 4.2 {name}: expected {expected}, found {found}")
		M = 1 << 20
		with open("sparse", "wb+") as f:
		    f.write(b"a" * 65536); f.seek(4 * M); f.write(b"b" * 65536); f.flush(); os.fsync(f.fileno())
		    os.ftruncate(f.fileno(), 8 * M)
		fd = os.open("sparse", os.O_RDWR)
		same("SEEK_HOLE after the first data", 65536, os.lseek(fd, 0, os.SEEK_HOLE))
		same("SEEK_DATA to the second", 4 * M, os.lseek(fd, 65536, os.SEEK_DATA))
		same("SEEK_HOLE at its end", 4 * M + 65536, os.lseek(fd, 4 * M, os.SEEK_HOLE))
		try:
		    same("SEEK_DATA in the last hole", "ENXIO", os.lseek(fd, 5 * M, os.SEEK_DATA))
		except OSError as e:
		    same("SEEK_DATA in the last hole", errno.ENXIO, e.errno)
		same("a hole reads as zeros", bytes(M), os.pread(fd, M, 2 * M))
		same("a sparse file takes little room", True, os.fstat(fd).st_blocks * 512 <= M)
		os.close(fd)
		with open("source", "wb") as f:
		    f.write(os.urandom(3 * M + 777))
		source, target = os.open("source", os.O_RDONLY), os.open("target", os.O_RDWR | os.O_CREAT, 0o644)
		left = 3 * M + 777
		while left:
		    n = os.copy_file_range(source, target, left)
		    if n == 0: break
		    left -= n
		os.close(source); os.close(target)
		same("copy_file_range copies all", True, open("source", "rb").read() == open("target", "rb").read())
	PYTHON
	cat /tmp/sparse
	failures=$((failures + $(grep -c '^FAIL' /tmp/sparse)))
	same "4.2 all of sparse files was tried" 7 "$(grep -c -e '^ok' -e '^FAIL' /tmp/sparse)"
	used "4.2 SEEK was sent" SEEK "$top"
	used "4.2 COPY was sent" COPY "$top"

	head -c 1048576 /dev/urandom >punched
	check "4.2 punch a hole" fallocate -p -o 262144 -l 262144 punched
	same "4.2 the hole keeps the size" 1048576 "$(stat -c %s punched)"
	echo 3 >/proc/sys/vm/drop_caches
	same "4.2 the hole is zeros" 262144 "$(tail -c +262145 punched | head -c 262144 | tr -d -c '\000' | wc -c)"
	used "4.2 DEALLOCATE was sent" DEALLOCATE "$top"
	check "4.2 allocate" fallocate -l 2097152 allocated
	same "4.2 allocate sets the size" 2097152 "$(stat -c %s allocated)"
	used "4.2 ALLOCATE was sent" ALLOCATE "$top"

	touch labelled
	if [ "$XATTRS" = no ]; then
		refused "4.2 extended attributes, which the source does not have" "not supported" setfattr -n user.colour -v green labelled
		return
	fi
	check "4.2 set an extended attribute" setfattr -n user.colour -v green labelled
	same "4.2 get it" green "$(getfattr --only-values -n user.colour labelled 2>/dev/null)"
	check "4.2 replace it" setfattr -n user.colour -v blue labelled
	setfattr -n user.shape -v round labelled
	same "4.2 list them" "user.colour user.shape" "$(getfattr labelled 2>/dev/null | grep user | sort | tr '\n' ' ' | sed 's/ $//')"
	check "4.2 remove one" setfattr -x user.colour labelled
	refused "4.2 it is gone" "No such attribute" getfattr -n user.colour labelled
	_big=$(printf '%02000d' 7)
	setfattr -n user.big -v "$_big" labelled
	echo 3 >/proc/sys/vm/drop_caches
	same "4.2 a value of 2,000 bytes" "$_big" "$(getfattr --only-values -n user.big labelled 2>/dev/null)"
	mkdir labels
	check "4.2 on a directory too" setfattr -n user.colour -v red labels
	chmod 600 labelled
	refused "4.2 not by a user who may not write" "denied" as 1001 setfattr -n user.mine -v 1 labelled
	refused "4.2 only the user namespace" "not supported|not permitted" setfattr -n trusted.mine -v 1 labelled
}

# Another kind of export each.
exports() {
	mount_nfs 4.2 /squash /mnt/squash
	echo x >/mnt/squash/by-root
	same "root_squash makes root nobody" "65534 65534" "$(stat -c '%u %g' /mnt/squash/by-root)"
	refused "root_squash: root reads no 0600 file of another" "denied" cat /mnt/squash/private
	refused "root_squash: root changes no owner" "not permitted|denied" chown 1001 /mnt/squash/by-root
	as 1001 touch /mnt/squash/by-user
	same "root_squash leaves users alone" 1001 "$(stat -c %u /mnt/squash/by-user)"

	mount_nfs 4.1 /anon /mnt/anon
	as 1001 touch /mnt/anon/by-user
	touch /mnt/anon/by-root
	same "all_squash with anonuid and anongid" "4000 4001|4000 4001" "$(stat -c '%u %g' /mnt/anon/by-user)|$(stat -c '%u %g' /mnt/anon/by-root)"

	mount_nfs 4.2 /ro /mnt/ro
	same "a read-only export is read" "to be read" "$(cat /mnt/ro/file)"
	refused "read-only: no new file" "Read-only" touch /mnt/ro/new
	refused "read-only: no write" "Read-only" sh -c 'echo >>/mnt/ro/file'
	refused "read-only: no chmod" "Read-only" chmod 777 /mnt/ro/file
	refused "read-only: no unlink" "Read-only" rm -f /mnt/ro/file
	refused "read-only: no rename" "Read-only" mv /mnt/ro/file /mnt/ro/other

	refused "an export for other addresses" "denied|No such file|not permitted" timeout 20 mount -t nfs -o vers=4.2 "$SERVER:/elsewhere" /mnt/ro
	refused "an export that is not there" "No such file" timeout 20 mount -t nfs -o vers=4.2 "$SERVER:/nothing" /mnt/ro

	mount_nfs 4.2 / /mnt/top
	same "the pseudo-root lists the exports" "anon data ro squash" "$(ls /mnt/top | grep -v elsewhere | tr '\n' ' ' | sed 's/ $//')"
	refused "the pseudo-root takes no files" "Read-only|denied|not permitted" touch /mnt/top/new
	same "an export is entered through it" "to be read" "$(cat /mnt/top/ro/file)"
	differ "an export has its own device" "$(stat -c %d /mnt/top)" "$(stat -c %d /mnt/top/ro/.)"
	same "dot dot leads back" "$(stat -c %i /mnt/top)" "$(stat -c %i /mnt/top/ro/..)"
}

# A file system that the test mounted at the server on data/below.
below() {
	same "$v a file system below the export" "deeper" "$(cat "$top/below/file")"
	differ "$v it has its own device" "$(stat -c %d "$top")" "$(stat -c %d "$top/below/.")"
	differ "$v and its own fsid" "$(fsid "$top")" "$(fsid "$top/below")"
	check "$v it is a mount point" mountpoint -q "$top/below"
	same "$v df shows its size" 8192 "$(df -k --output=size "$top/below/." | tail -n 1 | tr -d ' ')"
	check "$v it is written to" sh -c "echo new >'$top/below/new-$v' && grep -q new '$top/below/new-$v'"
	refused "$v no rename across" "Invalid cross-device" /usr/bin/python3 -c 'import os,sys; os.rename(sys.argv[1], sys.argv[2])' "$top/below/file" "$top/file"
	same "$v dot dot leads out" "$(stat -c %i "$top")" "$(stat -c %i "$top/below/..")"
}

# Old versions must be turned away at once, and the client must be told why in words a person can use.
old_versions() {
	_began=$(date +%s)
	refused "vers=4.0 is refused" "not supported|incorrect mount option" timeout 30 mount -t nfs -o vers=4.0 "$SERVER:/data" /mnt/ro
	refused "vers=3 is refused" "not supported|not registered|unavailable|incorrect mount option" timeout 30 \
		mount -t nfs -o vers=3,nolock,proto=tcp,port=2049,mountproto=tcp,mountport=2049 "$SERVER:/data" /mnt/ro
	_took=$(($(date +%s) - _began))
	check "both within ten seconds" test "$_took" -le 10
}

for v in 4.1 4.2; do
	top=/mnt/data-$v
	mount_nfs "$v" /data "$top"
	mkdir "$top/work-$v"
	chmod 755 "$top/work-$v"
	cd "$top/work-$v" || exit 98
	plain_files
	links
	special_files
	attributes
	permissions
	below
	[ "$v" = 4.2 ] && extensions
	cd /
done
exports
old_versions
for v in 4.1 4.2; do
	check "$v unmount" umount "/mnt/data-$v/below" "/mnt/data-$v"
done
finish
