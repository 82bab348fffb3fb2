# A client, over 4.2, of a cache whose source speaks NFSv3.
mount_nfs 4.2 /data /mnt/data
cd /mnt/data || exit 98
mkdir -p /tmp/tree/deep/er
for number in 1 2 3 4 5 6 7 8 9; do head -c "$((number * 30000))" /dev/urandom >"/tmp/tree/deep/file-$number"; done
head -c 3000000 /dev/urandom >/tmp/tree/deep/er/large
ln -s ../file-1 /tmp/tree/deep/er/link
check "a tree is copied" cp -a /tmp/tree tree
echo 3 >/proc/sys/vm/drop_caches
check "and is the same" diff -r /tmp/tree tree
same "a symbolic link" ../file-1 "$(readlink tree/deep/er/link)"
check "hard link" ln tree/deep/file-1 hard
same "it counts two" 2 "$(stat -c %h hard)"
check "rename" mv tree/deep/file-2 tree/deep/er/moved
check "the content moved along" cmp /tmp/tree/deep/file-2 tree/deep/er/moved
check "append" sh -c 'echo one >log && echo two >>log && test "$(cat log | tr "\n" " ")" = "one two "'
check "truncate" truncate -s 5 log
same "what is left" 5 "$(stat -c %s log)"
check "mode, owner, times" sh -c 'chmod 640 log && chown 1001:1002 log && touch -d @1000000 log'
same "they come back" "640 1001 1002 1000000" "$(stat -c '%a %u %g %Y' log)"
refused "another user may not read it" "denied" as 1003 cat log
check "its owner may" as 1001 cat log
same "a listing" "deep er file-1" "$(find tree -name deep -o -name er -o -name file-1 | xargs -n1 basename | sort | tr '\n' ' ' | sed 's/ $//')"
exec 9<hard
check "remove while open" rm hard
check "it is still read" sh -c 'cat <&9 | cmp - /tmp/tree/deep/file-1'
exec 9<&-
check "sqlite" sh -c 'sqlite3 db "create table t(x); insert into t values(1),(2); pragma integrity_check" | grep -q ok'
check "rm -r" rm -r tree
cd /
check "unmount" umount /mnt/data
finish
