# One image for coordinator, node and tools:  docker build -t hedgerow --network host .
# The first stage installs, the second holds what was installed and neither compilers nor pip's caches.
# The base is named by its digest, for a tag is whatever its registry says today. `docker buildx imagetools inspect
# python:3.11-slim` prints a newer one:  --build-arg BASE_IMAGE=docker.io/library/python:3.11-slim@sha256:...
ARG BASE_IMAGE=docker.io/library/python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7
FROM ${BASE_IMAGE} AS build
RUN python -m venv /opt/hedgerow
ENV PATH=/opt/hedgerow/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Dependencies first: they stay in the build's cache while the code changes.
COPY pyproject.toml README.md LICENSE ./
# Every file by its hash; deploy/lock writes the list for another set of extras.
COPY deploy/locks/ deploy/locks/
ARG EXTRAS="console duckdb postgresql sql"
RUN pip install --quiet --require-hashes -r "deploy/locks/$(echo $EXTRAS | tr ' ' '-').txt" \
    && cd /opt/hedgerow/lib/python3*/site-packages && rm -r pyarrow/tests pyarrow/include numba/tests \
    && find scipy -name tests -type d -prune -exec rm -r {} +
COPY . .
RUN pip install --quiet --no-deps --no-build-isolation . && pip uninstall --quiet --yes pip setuptools
# Numba keeps compiled kernels by their source's time of change; whole seconds survive every image format.
RUN find /opt/hedgerow/lib -path '*/hedgerow/*' -name '*.py' -exec touch -d 2026-01-01T00:00:00Z {} +
# The demonstration proves the installation; it and the command leave behind kernels compiled for this kind of processor.
RUN export NUMBA_CACHE_DIR=/opt/hedgerow/kernels && hedgerow warm-up --quiet \
    && hedgerow demo --json --out /tmp/demo > /dev/null && rm -r /tmp/demo

FROM ${BASE_IMAGE}
COPY --from=build /opt/hedgerow /opt/hedgerow
COPY deploy/entrypoint deploy/health.py /opt/hedgerow/deploy/
# What `flwr run` sends, where the extra `flower` was asked for (--build-arg EXTRAS="console duckdb postgresql sql flower").
COPY pyproject.toml flower_app.py /opt/hedgerow/app/
# The number is fixed so that files on a host can be given to it. /data is for whatever must outlive a container.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin hedgerow \
    && install -d -o hedgerow -g hedgerow -m 0700 /data
ENV PATH=/opt/hedgerow/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/kernels
USER 10001:10001
WORKDIR /data
VOLUME /data
# Python makes an orderly end of an interrupt; process 1 would ignore the usual signal.
STOPSIGNAL SIGINT
EXPOSE 7443
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["python", "/opt/hedgerow/deploy/health.py"]
ENTRYPOINT ["/opt/hedgerow/deploy/entrypoint"]
CMD ["--help"]
