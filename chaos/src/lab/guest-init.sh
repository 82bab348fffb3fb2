#!/bin/sh
# The first process of a guest. Everything it is told comes as LAB_… words on the kernel's command line, which the kernel puts into
# its environment. It mounts what a script may write to, brings the network up, runs the script and powers the guest off.
PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
export PATH HOME LANG
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /run
mkdir -p /run/lab /run/kmod/lib
# The machine's own /tmp is about to be hidden, and what was prepared for this guest may lie there.
mount --bind "$LAB_DIR" /run/lab
ln -s /usr/lib/uml/modules /run/kmod/lib/modules
for place in /tmp /mnt /root; do mount -t tmpfs none "$place"; done
mount -t devtmpfs none /dev 2>/dev/null
mkdir -p /dev/shm && mount -t tmpfs none /dev/shm
for module in sunrpc lockd nfs nfsv3 nfsv4; do
	modprobe -d /run/kmod "$module" || echo "cannot load $module"
done
hostname "$LAB_NAME"
ip link set lo up
ip address add "$LAB_ADDRESS/24" dev eth0
ip link set eth0 up
cd /root || exit 1
echo LAB-OUTPUT-BEGINS
sh /run/lab/script 2>&1
echo "LAB-OUTPUT-ENDS $?"
echo o >/proc/sysrq-trigger
sleep 60
