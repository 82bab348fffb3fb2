# A real kernel NFS server with the directories that the checks of files want, in a tmpfs; v4.1 and v4.2.
modprobe -d /run/kmod nfsd || exit 97
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/v4recovery /mnt/vol
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t tmpfs tmpfs /mnt/vol -o size=192M
cd /mnt/vol || exit 98
mkdir -m 755 data ro elsewhere && mkdir -m 777 squash anon && mkdir data/below
echo "for its owner" >squash/private && chmod 600 squash/private
echo "to be read" >ro/file
mount -t tmpfs tmpfs data/below -o size=8M
echo deeper >data/below/file
exportfs -o rw,sync,no_root_squash,fsid=0,crossmnt '*:/mnt/vol'
exportfs -o rw,sync,no_root_squash,fsid=1 '*:/mnt/vol/data/below'
# Debian's mountd asks this machine's user database for groups, and forgets those that the client sends.
echo >/tmp/nfs.conf && mount --bind /tmp/nfs.conf /etc/nfs.conf
rpc.mountd -V 4 2>/dev/null
echo 2 >/proc/fs/nfsd/nfsv4gracetime
echo 10 >/proc/fs/nfsd/nfsv4leasetime
rpc.nfsd -N 3 -V 4.1 -V 4.2 4
echo "MARK total $(($(stat -f -c '%b * %S' data)))"
await end
finish
