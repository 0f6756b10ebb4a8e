# Images of hybrid-train: a small one that computes on CPUs, and one with the CUDA backend.
#
#   docker build -t hybrid-train .
#   docker build -t hybrid-train:cuda --target cuda .
#   docker run --rm -v "$PWD:/work" hybrid-train --data book.txt --out runs/book
#   docker run --rm --gpus all -v "$PWD:/work" hybrid-train:cuda --doctor
#
# Each is made of the packages of `make deb`, built in a stage of its own. The user is 1000:1000: give --user
# "$(id -u):$(id -g)" where the mounted folder belongs to another. Other programs: --entrypoint hybrid-chat.
# CUDA_VERSION and CUDA_ARCHS choose the toolkit and the cards of the second image.

ARG DEBIAN=bookworm
ARG CUDA_VERSION=12.8.1
ARG CUDA_SYSTEM=ubuntu24.04

# ---- CPU: build ----------------------------------------------------------------------------------------------
FROM debian:${DEBIAN}-slim AS build-cpu
RUN apt-get update && apt-get install -y --no-install-recommends gcc make pkg-config libc6-dev libconfig-dev libyaml-dev \
    libpcre2-dev libmicrohttpd-dev libopenblas0 dpkg-dev && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN make -C /source deb NVCC= PACKAGES=/packages

# ---- CUDA: build ---------------------------------------------------------------------------------------------
FROM nvidia/cuda:${CUDA_VERSION}-devel-${CUDA_SYSTEM} AS build-cuda
ARG CUDA_ARCHS="75 80 86 89 90 120"
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ make pkg-config libc6-dev libconfig-dev libyaml-dev \
    libpcre2-dev libmicrohttpd-dev libopenblas0 dpkg-dev && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN make -C /source deb CUDA_ARCHS="${CUDA_ARCHS}" PACKAGES=/packages

# ---- CUDA: run -----------------------------------------------------------------------------------------------
# The runtime image has cuBLAS; the driver comes from the host, with --gpus.
FROM nvidia/cuda:${CUDA_VERSION}-runtime-${CUDA_SYSTEM} AS cuda
COPY --from=build-cuda /packages /packages
RUN apt-get update && apt-get install -y --no-install-recommends /packages/hybrid-train_*.deb \
    /packages/hybrid-train-cuda_*.deb libopenblas0 libedit2 libcurl4 ca-certificates && \
    rm -rf /packages /var/lib/apt/lists/*
RUN { id 1000 > /dev/null 2>&1 || useradd --uid 1000 --create-home trainer; } && mkdir /work && \
    chown 1000:1000 /work
USER 1000:1000
ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["hybrid-train"]
CMD ["--help"]

# ---- CPU: run (the last stage is what a build without --target makes) ----------------------------------------
FROM debian:${DEBIAN}-slim AS cpu
COPY --from=build-cpu /packages /packages
RUN apt-get update && apt-get install -y --no-install-recommends /packages/hybrid-train_*.deb libopenblas0 libedit2 \
    libcurl4 ca-certificates && rm -rf /packages /var/lib/apt/lists/*
RUN useradd --uid 1000 --create-home trainer && mkdir /work && chown 1000:1000 /work
USER 1000:1000
ENV HOME=/work
WORKDIR /work
ENTRYPOINT ["hybrid-train"]
CMD ["--help"]
