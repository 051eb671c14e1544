# The agent alone: no vLLM, no torch. The engine's image gets `pip install penstock` of its own.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY instrumentation instrumentation
COPY agent agent
RUN python -m venv /opt/penstock \
 && /opt/penstock/bin/pip install --no-cache-dir --disable-pip-version-check ".[agent]"

FROM python:3.11-slim-bookworm
RUN groupadd --gid 65532 penstock \
 && useradd --uid 65532 --gid 65532 --no-create-home --shell /usr/sbin/nologin penstock \
 && install -d -o penstock -g penstock -m 0750 /run/penstock \
 && install -d -o penstock -g penstock -m 0700 /var/lib/penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
VOLUME ["/run/penstock", "/var/lib/penstock"]
EXPOSE 9464
# SIGTERM drains; the agent answers health itself, so the pod's probes are set in the manifest.
STOPSIGNAL SIGTERM
ENTRYPOINT ["penstock-agent"]
CMD ["--http=0.0.0.0:9464"]
