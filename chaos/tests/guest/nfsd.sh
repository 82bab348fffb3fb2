# A real kernel NFS server: a tmpfs as the root of its exports, v4.1 and v4.2. It then waits to be told what to do beside its clients.
modprobe -d /run/kmod nfsd || exit 97
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/v4recovery /mnt/vol
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t tmpfs tmpfs /mnt/vol -o size=128M
chmod 777 /mnt/vol
# `secure`, as kernel servers export: clients must come from a port below 1024.
exportfs -o rw,sync,no_root_squash,fsid=0 '*:/mnt/vol'
rpc.mountd -V 4 2>/dev/null
echo 2 >/proc/fs/nfsd/nfsv4gracetime
echo 10 >/proc/fs/nfsd/nfsv4leasetime
rpc.nfsd -N 3 -V 4.1 -V 4.2 4
echo "MARK serving"

await churn
/usr/bin/python3 /run/lab/churn.py /mnt/vol/shared 1 "$CHANGES"
echo "MARK churned"
await fresh
number=0
while [ "$number" -lt 20 ]; do
	number=$((number + 1))
	echo "content $number" >"/mnt/vol/fresh-$number"
	echo "MARK fresh-$number"
	await "seen-$number"
done
await digest
cd /mnt/vol/shared || exit 98
find . -type f | LC_ALL=C sort | while read -r file; do echo "DIGEST $(md5sum "$file")"; done
echo "MARK digested"
await end
finish
