"""The clients: what each needs, how it is installed, and how its program is started."""

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """An installation or a program that ended badly, with what it said."""


class Client:
    """One client library. `name` is what the command line of `run` calls it."""

    def __init__(self, name):
        self.name = name

    def missing(self):
        """The first tool that is not here."""
        return next((tool for tool in self.needs if not shutil.which(tool)), None)

    def stamp(self, cache):
        """Present when what these sources ask for is installed."""
        return cache / f"{self.name}.installed"

    def is_installed(self, cache):
        stamp = self.stamp(cache)
        return stamp.exists() and stamp.read_text() == self.sources()

    def prepare(self, cache):
        if not self.is_installed(cache):
            cache.mkdir(parents=True, exist_ok=True)
            self.install(cache)
            self.stamp(cache).write_text(self.sources())

    def sources(self):
        """Everything that the installation was made of."""
        files = sorted(path for path in (HERE / self.folder).rglob("*") if path.is_file())
        return "\n".join(f"{path.relative_to(HERE)}\n{path.read_text()}" for path in files)


class Python(Client):
    needs, folder = ["python3"], "python"

    def install(self, cache):
        place = cache / self.name
        call("python3", "-m", "venv", "--clear", place)
        words = "install", "--quiet", "--disable-pip-version-check", "-r"
        call(place / "bin/pip", *words, self.requirements())

    def requirements(self):
        return HERE / f"python/requirements-{self.name}.txt"

    def sources(self):
        # Programs are run where they are.
        return self.requirements().read_text()

    def command(self, cache):
        program = HERE / "python" / (self.name.replace("-", "_") + ".py")
        return [cache / self.name / "bin/python", "-B", program]


class Node(Client):
    needs, folder = ["node", "npm"], "node"

    def install(self, cache):
        # Modules are looked for beside the program, so the programs are copied to them.
        place = cache / "node"
        shutil.copytree(HERE / "node", place, dirs_exist_ok=True)
        call("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=place)

    def command(self, cache):
        return ["node", cache / "node" / (self.name + ".mjs")]


class Go(Client):
    needs, folder = ["go"], "go"

    def install(self, cache):
        call("go", "build", "-o", cache / self.name, ".", cwd=HERE / "go")

    def command(self, cache):
        return [cache / self.name]


class Java(Client):
    needs, folder = ["java", "mvn"], "java"

    def install(self, cache):
        build = f"-Dclients.build={cache / 'java'}"
        call("mvn", "-q", "-B", "-f", HERE / "java/pom.xml", build, "package")

    def command(self, cache):
        path = f"{cache}/java/classes:{cache}/java/lib/*"
        return ["java", "-cp", path, "clients." + self.name.capitalize()]


class Rust(Client):
    needs, folder = ["cargo"], "rust"

    def install(self, cache):
        manifest = HERE / "rust/Cargo.toml"
        words = "build", "--quiet", "--release", "--locked", "--bin", self.name
        call("cargo", *words, "--manifest-path", manifest, "--target-dir", cache / "rust")

    def command(self, cache):
        return [cache / "rust/release" / self.name]


CLIENTS = [
    Python("redis-py"),
    Python("valkey-glide"),
    Node("ioredis"),
    Node("node-redis"),
    Go("go-redis"),
    Java("jedis"),
    Java("lettuce"),
    Rust("redis-rs"),
    Rust("fred"),
]


def call(*words, cwd=None):
    words = [str(word) for word in words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=cwd, text=True, **pipes)
    if done.returncode:
        raise Failed(f"{' '.join(words)}: {done.stdout[-2000:].strip()}")
