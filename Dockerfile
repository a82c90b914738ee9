# The server as an image: docker build -t tailrace .    docs/deploy.md says how to run it.

# Tag and digest belong together; docs/deploy.md has how to refresh them.
FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
RUN pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/tailrace \
    UV_PYTHON_DOWNLOADS=never \
    UV_LINK_MODE=copy \
    UV_COMPILE_BYTECODE=1
WORKDIR /src
# What it needs, in the versions of the lock file: made anew only when those change.
COPY pyproject.toml uv.lock ./
RUN uv sync --frozen --no-cache --no-default-groups --all-extras --no-extra demo --no-extra pii --no-install-project
# The wheel, made and installed.
COPY README.md LICENSE ./
COPY wrappers wrappers
COPY streaming streaming
COPY server server
RUN uv sync --frozen --no-cache --no-default-groups --all-extras --no-extra demo --no-extra pii --no-editable

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
RUN useradd --uid 10001 --home-dir /var/lib/tailrace --create-home tailrace
COPY --from=build /opt/tailrace /opt/tailrace
ENV PATH=/opt/tailrace/bin:$PATH \
    TAILRACE_HOST=0.0.0.0 \
    TAILRACE_PORT=8000 \
    TAILRACE_STORE=sqlite:////var/lib/tailrace/tailrace.db
# By its number: Kubernetes asks for that where it must not be root.
USER 10001
WORKDIR /var/lib/tailrace
VOLUME /var/lib/tailrace
EXPOSE 8000
# Not by urllib, which would ask a proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['TAILRACE_PORT']), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
CMD ["tailrace", "serve"]
