# One image for everything in Python: controller, workers, the embedded switch and what prepares the links.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
RUN python -m venv /opt/switchreduce
ENV PATH=/opt/switchreduce/bin:$PATH
WORKDIR /source
# dependencies first, so that a change of the sources does not install them anew
COPY pyproject.toml .
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb")); \
        print(*project["build-system"]["requires"], *project["project"]["dependencies"], sep="\n")' \
        > requirements.txt \
    && pip install --no-cache-dir --requirement requirements.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
# ip and nft prepare a container's links
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iproute2 nftables \
    && rm -rf /var/lib/apt/lists/*
# machine code of kernels and P4 programs goes to this folder; user 1000 is who most often owns INPUT's file
RUN useradd --uid 1000 --create-home switchreduce \
    && install --directory --owner=switchreduce --group=switchreduce /var/cache/switchreduce
COPY --from=build /opt/switchreduce /opt/switchreduce
ENV PATH=/opt/switchreduce/bin:$PATH \
    XDG_CACHE_HOME=/var/cache/switchreduce \
    PYTHONUNBUFFERED=1
USER switchreduce
WORKDIR /home/switchreduce
RUN python -m switchreduce.sim.compose.warm
CMD ["switchreduce", "--help"]
