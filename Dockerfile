# One image for all roles of Holdfast; the command selects the role:
#   docker build -t holdfast .
#   docker run holdfast --help
# For your own jobs: FROM holdfast, COPY your code to /app, and run `worker package.module:app`.
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY requirements requirements
# Every package by its hash, including the build tools: `make lock` writes them.
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && python3 -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/holdfast/bin/pip install --no-cache-dir --no-deps dist/*.whl

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --home-dir /var/lib/holdfast --create-home holdfast \
    && mkdir /app
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOLDFAST_HOST=0.0.0.0 \
    HOLDFAST_LOG_FORMAT=json \
    HOLDFAST_URL=/var/lib/holdfast/holdfast.db
USER holdfast
WORKDIR /app
VOLUME /var/lib/holdfast
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast"]
CMD ["up"]
