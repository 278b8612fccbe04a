# Process 1 of a node: slurmd, with a /tmp and /dev/shm of its own. $1: the directory that all nodes
# share, $2: the node's name, $3: the repository.
set -eu
root=$1 name=$2 repository=$3
hostname "$name"
mount --bind "$root/hosts" /etc/hosts
mount -t tmpfs tmpfs /mnt
mkdir /mnt/cgroup
mount --rbind /sys/fs/cgroup /mnt/cgroup
mount -t sysfs sysfs /sys # with the node's own network interfaces
mount --rbind /mnt/cgroup /sys/fs/cgroup
number=0
for shared in "$root" "$repository"; do # a bind mount keeps them, though they may lie below /tmp
  mkdir "/mnt/$((number += 1))"
  mount --bind "$shared" "/mnt/$number"
done
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
number=0
for shared in "$root" "$repository"; do
  mkdir -p "$shared"
  mount --bind "/mnt/$((number += 1))" "$shared"
done
slurmd -D -N "$name" -f "$root/slurm.conf" &
while true; do wait; sleep 1; done
