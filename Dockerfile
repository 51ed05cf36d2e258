# Two images from one file: `services` (no torch; telemetry, detector, scheduler, migrations and topics differ by command)
# and `trainer` (with torch; the example job). Package indexes are whatever pip is set up for.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS wheel
WORKDIR /src
RUN python -m venv /tools
COPY requirements/tools.lock requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    /tools/bin/pip install --quiet --require-hashes --requirement requirements/tools.lock
COPY . .
RUN /tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim AS services-packages
RUN python -m venv /opt/evenkeel
# Dependencies first: they change rarely, and the layer is kept.
COPY requirements/services.lock /tmp/
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/evenkeel/bin/pip install --quiet --require-hashes --requirement /tmp/services.lock
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/evenkeel/bin/pip install --quiet --no-deps /wheels/*.whl

FROM python:${PYTHON_VERSION}-slim AS trainer-packages
RUN python -m venv /opt/evenkeel
COPY requirements/trainer.lock /tmp/
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/evenkeel/bin/pip install --quiet --require-hashes --requirement /tmp/trainer.lock
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/evenkeel/bin/pip install --quiet --no-deps /wheels/*.whl

FROM python:${PYTHON_VERSION}-slim AS runtime
RUN useradd --uid 10001 --create-home evenkeel
ENV PATH=/opt/evenkeel/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER evenkeel
WORKDIR /home/evenkeel

FROM runtime AS trainer
COPY --from=trainer-packages /opt/evenkeel /opt/evenkeel
COPY examples /opt/evenkeel/examples
CMD ["python", "-m", "evenkeel.trainer_sdk.launcher", "--help"]

# The last stage is what a build makes that names none.
FROM runtime AS services
COPY --from=services-packages /opt/evenkeel /opt/evenkeel
# Machine code for any processor of this kind, compiled now and not when a container starts.
ENV NUMBA_CPU_NAME=generic
RUN python -m evenkeel.planning.warm_up
CMD ["evenkeel", "--help"]
