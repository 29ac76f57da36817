# ipal serve on a CPU.
#
#   docker build -t ipal-serve --build-arg TORCH_INDEX=URL .
#   docker run --rm -p 8000:8000 --user "$(id -u)" -v "$PWD/model:/model:ro" -e IPAL_TOKEN ipal-serve
#
# TORCH_INDEX is where wheels of torch for CPUs are (see pytorch.org, "Get Started"): without it the wheel for GPUs is
# taken, which is some gigabytes larger. PIP_INDEX is another index for everything else. PYTHON is the tag of the base
# image; a digest may follow it (TAG@sha256:…). All versions are those of constraints.txt.

ARG PYTHON=3.12.11-slim-bookworm
FROM python:${PYTHON} AS build
ARG TORCH_INDEX=""
ARG PIP_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/ipal
WORKDIR /src
COPY constraints.txt ./
RUN /opt/ipal/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --no-deps "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE CITATION.cff ./
COPY experiments ./experiments
COPY src ./src
RUN /opt/ipal/bin/pip install ${PIP_INDEX:+--index-url "$PIP_INDEX"} --constraint constraints.txt ".[serve]"

FROM python:${PYTHON}
RUN useradd --system --uid 10001 --create-home ipal
COPY --from=build /opt/ipal /opt/ipal
ENV PATH=/opt/ipal/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
USER ipal
WORKDIR /home/ipal
EXPOSE 8000
VOLUME /model
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD \
    ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# The token comes from the environment (IPAL_TOKEN) or from a file; further options follow the name of the image.
ENTRYPOINT ["ipal", "serve", "/model/model.safetensors", "--host", "0.0.0.0", "--port", "8000"]
