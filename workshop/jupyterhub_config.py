"""JupyterHub for a class that shares one machine and its GPU. As root, in a clone that root owns and all can read, such as one
in /opt, with a Python that all can run:

    apt-get install python3-venv g++ make tmux                            # Ubuntu's and Debian's names; umask 022
    make labs && .venv/bin/pip install -r workshop/requirements.txt
    npm install -g configurable-http-proxy@5                              # Node 20 or newer: Ubuntu 24.04 and Debian 12 have 18
    . .venv/bin/activate
    groupadd -f learners                                                  # then, of a file class.txt with lines NAME:PASSWORD
    cut -d: -f1 class.txt | xargs -n1 useradd -m -s /bin/bash -G learners; chpasswd < class.txt
    mkdir -p /srv/nbgrader/exchange && chmod 1777 /srv/nbgrader/exchange
    python -m labkit assignments /srv/course && cd /srv/course
    for lab in $(ls source); do nbgrader generate_assignment $lab && nbgrader release_assignment $lab; done; cd -
    python -m labkit preflight /srv/course --learners 12                  # what is missing, and what to do
    python workshop/try_hub.py --learners 4                               # a class, played
    WORKSHOP_LEARNERS=12 jupyterhub -f workshop/jupyterhub_config.py      # in tmux: the hub ends with its terminal

Learners reach it at https://HOST where there is a certificate, as from `certbot certonly --standalone -d HOST`, and
    mkdir -p -m 700 /srv/jupyterhub && cd /srv/jupyterhub
    ln -s /etc/letsencrypt/live/HOST/fullchain.pem tls.crt && ln -s /etc/letsencrypt/live/HOST/privkey.pem tls.key
Without one, each opens a tunnel, `ssh -L 8000:127.0.0.1:8000 NAME@HOST`, and then http://127.0.0.1:8000.

Answers come in, in /srv/course, with: nbgrader collect LAB; nbgrader autograde LAB; nbgrader generate_feedback LAB; nbgrader
release_feedback LAB. Who passed what: python -m labkit dashboard /srv/course. Afterwards, of each: userdel -r NAME.

Each learner is a real account of the machine, in the group "learners", who logs in with its password and gets the workspace
that workspace.py makes. The repository is only read: what it holds, and what lies in its build/, is there for all.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

c = get_config()  # noqa: F821
WORKSHOP = Path(__file__).resolve().parent
LEARNERS = int(os.environ.get("WORKSHOP_LEARNERS", "12"))
STATE = Path(os.environ.get("WORKSHOP_STATE", "/srv/jupyterhub"))

# The hub's secrets and its database: whoever reads them is anybody.
STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
STATE.chmod(0o700)
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
c.JupyterHub.db_url = f"sqlite:///{STATE}/jupyterhub.sqlite"
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")

# Passwords cross a network only where they are encrypted: without a certificate the hub is reached from this machine alone, by
# an ssh tunnel or through a web server that has one.
if (STATE / "tls.crt").exists():
    c.JupyterHub.bind_url = "https://:443"
    c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = str(STATE / "tls.crt"), str(STATE / "tls.key")
else:
    c.JupyterHub.bind_url = os.environ.get("WORKSHOP_URL", "http://127.0.0.1:8000")

# All servers share one address, so a page that one learner makes has another's rights where that one opens it. Where they do
# not trust one another, JupyterHub.subdomain_host gives each a name, for which DNS and certificate need a wildcard.

# Accounts and passwords are the machine's (PAM). Nobody is an admin: an admin could enter all servers.
c.JupyterHub.authenticator_class = "pam"
c.LocalAuthenticator.allowed_groups = {"learners"}

# workspace.py runs as the learner, so that nothing is done as root in a folder that a learner may change.
c.Spawner.cmd = [sys.executable, str(WORKSHOP / "workspace.py"), str(Path(sys.executable).with_name("jupyterhub-singleuser"))]
c.Spawner.notebook_dir = "~/kernel-to-gradient"
c.Spawner.default_url = "/lab/tree/labs"
c.Spawner.args = [
    "--KernelManager.transport=ipc",  # in a closed folder: what kernels print on ports, all users of a machine can read
    "--MappingKernelManager.cull_idle_timeout=3600",  # a kernel keeps its GPU memory for as long as it lives
    "--MappingKernelManager.cull_connected=True",  # also in a tab that was left open
]
c.JupyterHub.concurrent_spawn_limit = 0  # all start at once when the class begins; with a limit the hub turns learners away
c.Spawner.start_timeout = c.Spawner.http_timeout = 180
c.Spawner.environment = {
    "JUPYTER_CONFIG_PATH": str(WORKSHOP),  # nbgrader_config.py, and what hides a teacher's tools
    "WORKSHOP_EXCHANGE": os.environ.get("WORKSHOP_EXCHANGE", "/srv/nbgrader/exchange"),
    # PyTorch's operators start a thread a core in each process, and a class shares the cores.
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // LEARNERS)),
    "MAX_JOBS": "2",  # compilers of one learner at a time
}

# Memory. systemd limits a learner as a whole. Without it JupyterHub only names the limit, and workspace.py sets it on each
# process.
c.Spawner.mem_limit = os.environ.get("WORKSHOP_MEMORY", "6G")
if Path("/run/systemd/system").is_dir() and importlib.util.find_spec("systemdspawner"):
    c.JupyterHub.spawner_class = "systemd"
    c.SystemdSpawner.isolate_tmp = True  # a /tmp each
    c.SystemdSpawner.disable_user_sudo = True
    # A loop that forks ends there, and what memory is refused may not go to the disk instead.
    c.SystemdSpawner.unit_extra_properties = {"TasksMax": "2048", "MemorySwapMax": "0"}

# The GPU. Processes on one GPU take turns (time-slicing) with no setting at all; only memory has to be shared out. Of a card
# that is cut by MIG each learner gets an instance, which is memory and SMs of its own; who comes when there is none left shares
# one. Both hold a learner who plays fair: whoever sets these variables anew has the whole card. In Kubernetes MIG is enforced.
# MPS would enforce a limit here too, but an illegal access in one learner's kernel would then end the kernels of all.
listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout if shutil.which("nvidia-smi") else ""
instances = re.findall(r"MIG-[0-9a-f-]{36}", listed)
sharing = max(1, LEARNERS / len(instances)) if instances else LEARNERS
if instances:
    c.Spawner.environment["CUDA_VISIBLE_DEVICES"] = lambda spawner: instances[spawner.user.id % len(instances)]
# torch's own limit on what a process allocates. 2.9 does not know it, and refuses what it does not know, so the library is
# asked. A tenth is left for the contexts, which it does not count.
library = Path(importlib.util.find_spec("torch").origin).parent / "lib" / "libc10_cuda.so"
if library.exists() and b"per_process_memory_fraction" in library.read_bytes():
    c.Spawner.environment["PYTORCH_ALLOC_CONF"] = f"per_process_memory_fraction:{0.9 / sharing:.3f}"
