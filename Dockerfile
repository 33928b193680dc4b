# The course in a container, on CPUs. Two images, see docs/one_click.md:
#
#     docker build --tag course .                    JupyterLab for one reader
#     docker compose up --build                      the target hub: a small JupyterHub for a class (compose.yaml)

# The Python that the notebooks' outputs were recorded with; the lock fits any from 3.11 on.
ARG PYTHON=3.11
ARG NODE=24

FROM python:${PYTHON}-slim AS packages
# PyTorch's CPU wheels, a tenth of the CUDA build. Another index: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/course
# What the course imports, in the lock's versions. The lock's test tools stay out: they are half of the download.
COPY pyproject.toml requirements.lock README.md LICENSE ./
RUN pip install --constraint requirements.lock --editable ".[deepspeed]"
COPY . .
# Again, now that course_lib is there: the first call found no package to make importable.
RUN pip install --no-deps --editable .

FROM node:${NODE}-slim AS proxy
RUN npm install --global configurable-http-proxy@5.3.0

FROM packages AS hub
COPY --from=proxy /usr/local/bin/node /usr/local/bin/node
COPY --from=proxy /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN ln --symbolic ../lib/node_modules/configurable-http-proxy/bin/configurable-http-proxy /usr/local/bin/ \
    && pip install --constraint requirements.lock --requirement tools/hub/requirements.txt
# The hub starts each server under its user's own account, which only root may do. No kernel runs as root.
# Its database and its passwords are nobody else's to read; a new volume takes over the folder's mode.
RUN install --directory --mode=0700 /srv/hub
WORKDIR /srv/hub
ENV PYTHONPATH=/opt/course
EXPOSE 8000
CMD ["jupyterhub", "--config=/opt/course/tools/hub/jupyterhub_config.py"]
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/hub/health')"]

FROM packages AS course
# The course is root's and stays as it was built; the reader owns the copies.
RUN useradd --create-home --uid 1000 reader && install --directory --owner=reader workspace build
USER 1000
VOLUME /opt/course/workspace
EXPOSE 8888
CMD ["python", "-m", "tools.lab", "--", "--no-browser", "--ip=0.0.0.0"]
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8888/api')"]
