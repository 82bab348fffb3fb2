#!/bin/sh
# Runs the tests against real servers of nfs3_source.rs against NFS-Ganesha, in a network namespace of their own.
# As root; needs nfs-ganesha-vfs, rpcbind and iproute2. The argument is the test program that
# `cargo test -p forebay-node --test nfs3_source --no-run` names.
set -eu
program=$1
[ -x "$program" ] || { echo "usage: ganesha.sh TEST-PROGRAM" >&2; exit 2; }
home=$(mktemp -d)
net=nfs3-$$
cleanup() {
    [ -f "$home/pid" ] && kill "$(cat "$home/pid")" 2>/dev/null
    [ -f "$home/rpcbind" ] && kill "$(cat "$home/rpcbind")" 2>/dev/null
    sleep 1
    ip netns del "$net"
    rm -rf "$home"
}
trap cleanup EXIT
mkdir "$home/export" "$home/recovery"
ip netns add "$net"
ip -n "$net" link set lo up
# Ganesha takes no address, not even the loopback's, where no other interface has one.
ip -n "$net" link add lan type bridge
ip -n "$net" addr add 10.71.0.1/24 dev lan
ip -n "$net" link set lan up
cat >"$home/conf" <<CONF
NFS_Core_Param { Protocols = 3; Bind_addr = 127.0.0.1; NFS_Port = 12049; MNT_Port = 12048; Enable_NLM = false;
    Enable_RQUOTA = false; }
NFSv4 { RecoveryRoot = "$home/recovery"; }
EXPORT { Export_Id = 1; Path = "$home/export"; Pseudo = /data; Squash = No_Root_Squash; SecType = sys; Protocols = 3;
    Transports = TCP; Access_Type = RW; FSAL { Name = VFS; } }
CONF
# It does not start unless it can register itself; /run is the mount namespace's own, so that the system's port mapper,
# which is reached through a socket there, learns nothing of it.
ip netns exec "$net" unshare -m sh -c '
    mount -t tmpfs tmpfs /run && mkdir -p /run/rpcbind /run/ganesha
    rpcbind -f & echo $! >"$0/rpcbind"
    sleep 1
    exec ganesha.nfsd -F -L "$0/log" -N NIV_EVENT -f "$0/conf" -p "$0/pid"
' "$home" >"$home/out" 2>&1 &
tries=0
until ip netns exec "$net" ss -Htln 'sport = 12048' | grep -q LISTEN; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { cat "$home/out" "$home/log" >&2; exit 1; }
    sleep 0.1
done
sleep 1
# Ports by the port mapper, by trying, and as given.
for ports in : 12049: 12049:12048; do
    echo "ports $ports"
    FOREBAY_TEST_NFS3="127.0.0.1:$ports:$home/export" ip netns exec "$net" "$program" --ignored
done
