# The flavours of the image, for `docker buildx bake cuda`; --print shows what that would build.
# A build argument of the Dockerfile: --set '*.args.MAX_JOBS=16'. podman has no bake, and
# its own format has no HEALTHCHECK:
#
#   podman build --format docker --build-arg FLAVOUR=cuda --tag rollcall:cuda .

group "default" {
  targets = ["cuda"]
}

target "image" {
  name   = flavour
  matrix = { flavour = ["cpu", "cuda", "cuda-verl", "rocm"] }
  target = "image"
  args   = { FLAVOUR = flavour }
  tags   = ["rollcall:${flavour}"]
}
