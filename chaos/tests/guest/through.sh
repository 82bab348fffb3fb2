# A client of a cache in front of a kernel NFS server, which others change beside it.
mount_nfs 4.2 /data /mnt/data "actimeo=1"
cd /mnt/data || exit 98
mkdir shared
for number in 1 2 3 4 5 6 7 8; do head -c 100000 /dev/urandom >"shared/file-$number"; done
head -c 20000000 /dev/urandom >/tmp/big
cp /tmp/big big
echo 3 >/proc/sys/vm/drop_caches
check "twenty megabytes come back equal" cmp /tmp/big big
rm big
echo "MARK ready"

await churn
/usr/bin/python3 /run/lab/churn.py /mnt/data/shared 2 "$CHANGES"
echo "MARK churned"
await fresh
number=0
while [ "$number" -lt 20 ]; do
	number=$((number + 1))
	await "made-$number"
	# Nobody has asked for this name before: it is there at once.
	same "a file just made at the source, $number" "content $number" "$(cat "fresh-$number")"
	echo "MARK seen-$number"
done
await digest
cd shared || exit 98
find . -type f | LC_ALL=C sort | while read -r file; do echo "DIGEST $(md5sum "$file")"; done
echo "MARK digested"
finish
