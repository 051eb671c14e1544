# The images, neither with vLLM or torch: `docker build .` makes the agent's, `docker build --target payload .` the
# payload's; docs/guides/install.md, "Build the images yourself".
# Debian with Python 3.11 as `python` and `python3`, its venv module, useradd, CA certificates and libstdc++. A release gives it by digest.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# What all images of this project have.
FROM ${BASE} AS base
RUN groupadd --gid 65532 penstock \
 && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin penstock
ENV PYTHONUNBUFFERED=1

# Variables of pip, for a build without PyPI: another index, or a directory of wheels that is mounted.
FROM base AS source
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
WORKDIR /src
COPY deploy/image deploy/image
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check -r deploy/image/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY instrumentation instrumentation
COPY agent agent

# No pip in what is shipped. The list of its contents is made from what is installed, not from what was asked for.
FROM source AS build
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
RUN python -m venv --without-pip /opt/penstock \
 && /opt/build/bin/pip --python /opt/penstock/bin/python install --no-cache-dir --disable-pip-version-check \
    --constraint deploy/image/constraints.txt ".[agent]" \
 && mkdir -p /opt/penstock/share \
 && /opt/build/bin/python deploy/image/sbom.py /opt/penstock/bin/python >/opt/penstock/share/sbom.cdx.json

FROM source AS build-payload
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
COPY deploy/payload deploy/payload
RUN PYTHON=/opt/build/bin/python deploy/payload/build.sh /opt/penstock-payload

# The engine part for an init container, `--target payload`: it stages the files and ends. No agent, no engine.
FROM base AS payload
ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="penstock-payload" \
      org.opencontainers.image.description="The engine part of Penstock for a vLLM image without it: an init container stages it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
COPY --from=build-payload /opt/penstock-payload /opt/penstock-payload
RUN ln -s /opt/penstock-payload/penstock_stage.py /usr/local/bin/penstock-stage
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["penstock-stage"]
CMD ["/opt/penstock-engine"]

FROM base AS agent
ARG BASE
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="penstock-agent" \
      org.opencontainers.image.description="The sidecar of Penstock: why a KV, encoder or expert transfer of vLLM failed, waited or was slow" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"
RUN install -d -o penstock -g penstock -m 0750 /run/penstock \
 && install -d -o penstock -g penstock -m 0700 /run/penstock-admin /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
VOLUME ["/run/penstock", "/run/penstock-admin", "/var/lib/penstock"]
EXPOSE 9464
# SIGTERM drains; the agent answers health itself, so the pod's probes are set in the manifest.
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock-agent"]
CMD ["--http=0.0.0.0:9464"]
