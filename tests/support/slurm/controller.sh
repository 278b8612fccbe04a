# Process 1 of the machine that joins the nodes: a bridge, munge and slurmctld. $1: a directory.
set -eu
root=$1
hostname controller
mount --bind "$root/hosts" /etc/hosts
ip link set lo up
ip link add bridge type bridge
ip address add 10.77.0.254/24 dev bridge
ip link set bridge up
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
for number in 1 2 3; do
  ip netns add "n$number"
  ip link add "to-n$number" type veth peer name eth0 netns "n$number"
  ip link set "to-n$number" master bridge up
  ip -n "n$number" link set lo up
  ip -n "n$number" link set eth0 up
  ip -n "n$number" address add "10.77.0.$number/24" dev eth0
done
mkdir -p /run/munge
mount -t tmpfs -o mode=755 tmpfs /run/munge # the nodes see it too
munged --key-file "$root/munge.key" --pid-file /run/munge/pid --seed-file /run/munge/seed \
  --log-file /run/munge/log
export SLURM_CONF=$root/slurm.conf
slurmctld -D -f "$root/slurm.conf" &
while true; do wait; sleep 1; done
