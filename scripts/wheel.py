#!/usr/bin/env python3
"""Makes wheels for pip and uv of a folder that scripts/dist.sh made, beside it: gguf_kl-VERSION-TAG.whl with
the program, its libraries and the Python module, and gguf_kl_NAME-... for each GPU backend in target/backends
(scripts/backend.sh).

    scripts/wheel.py dist/kl-0.1.0-x86_64-linux

Needs Python 3.9 and readelf. docs/DESIGN.md has the reasons for the layout.
"""
import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "gguf-kl"

# `uvx gguf-kl` runs the command of that name. `uv tool install` links to it from another folder.
SECOND_NAME = b"""#!/bin/sh
exec "$(dirname "$(readlink -f "$0")")/kl" "$@"
"""

# The oldest glibc beside which each newest version of libstdc++'s and libgcc's symbols is found: those of
# auditwheel's manylinux-policy.json, which scripts/wheel-check.sh compares with.
BESIDE = {
    (2, 28): {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    (2, 31): {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)},
    (2, 34): {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)},
    (2, 35): {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    (2, 39): {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
}


def main():
    folder = Path(*sys.argv[1:2]).resolve()
    named = re.fullmatch(r"kl-([0-9]+(?:\.[0-9]+)*)-(\w+)-linux", folder.name)
    if not named:
        raise SystemExit("wheel: name a folder of make dist, such as dist/kl-0.1.0-x86_64-linux")
    version, arch = named.groups()
    licences = {f"licenses/{name}": (ROOT / name).read_bytes() for name in ("LICENSE", "THIRD-PARTY.txt")}

    own = {"kl": folder / "kl", **{path.name: path for path in sorted(folder.glob("lib*.so*"))}}
    backends = {path.name: path for path in sorted((ROOT / "target/backends").glob("libggml-*.so"))}
    for name in backends:
        own.pop(name, None)
    extras = "Provides-Extra: numpy\nRequires-Dist: numpy; extra == 'numpy'\n"
    extras += f"Provides-Extra: vulkan\nRequires-Dist: {NAME}-vulkan=={version}; extra == 'vulkan'\n"
    files = {"scripts/kl": own.pop("kl").read_bytes(), "scripts/gguf-kl": SECOND_NAME}
    files |= {f"data/lib/kl/{name}": path.read_bytes() for name, path in own.items()}
    files |= {f"data/{path.relative_to(folder)}": path.read_bytes()
              for path in sorted((folder / "share").rglob("*")) if path.is_file()}
    out, described = folder.parent, manifest("description")
    write(out, NAME, version, arch, [folder / "kl", *own.values()], described, extras, readme(version), licences, files,
          {"gguf_kl.py": (ROOT / "python/gguf_kl.py").read_bytes()})

    for name, path in backends.items():
        backend = name.removeprefix("libggml-").removesuffix(".so")
        summary = f"llama.cpp's {backend} backend for kl ({NAME})"
        text = f"A library that `kl` of {NAME} loads. See its docs/GPU.md.\n"
        write(out, f"{NAME}-{backend}", version, arch, [path], summary, f"Requires-Dist: {NAME}=={version}\n", text,
              licences, {f"data/lib/kl/{name}": path.read_bytes()}, {})


def manifest(key):
    """The first value of a key in Cargo.toml, or None."""
    found = re.search(f'^{key} = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M)
    return found and found[1]


def readme(version):
    """README.md; its links to other files lead to the repository, if Cargo.toml has its address."""
    text, repository = (ROOT / "README.md").read_text(), manifest("repository")
    if not repository:
        return text

    def absolute(link):
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}({repository}/{kind}/v{version}/{link[2]})"

    return re.sub(r"(!?\[[^][]*\])\((?!https?:|#)([^()]+)\)", absolute, text)


def write(folder, name, version, arch, binaries, summary, requires, readme, licences, data, modules):
    """Writes a wheel into `folder`: its modules, `data` by their paths below NAME-VERSION.data, and what describes it."""
    tag = f"py3-none-manylinux_{'_'.join(map(str, oldest_glibc(binaries)))}_{arch}"
    stem = f"{name.replace('-', '_')}-{version}"
    licence_files = "".join(f"License-File: {path.removeprefix('licenses/')}\n" for path in licences)
    repository = manifest("repository")
    metadata = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
        f"License-Expression: MIT\n{licence_files}Requires-Python: >=3.9\n"
        f"Keywords: gguf,llama-cpp,quantization,kl-divergence,perplexity\n"
        f"Classifier: Environment :: Console\nClassifier: Operating System :: POSIX :: Linux\n"
        f"{f'Project-URL: Source, {repository}{chr(10)}' if repository else ''}{requires}Description-Content-Type: text/markdown\n\n{readme}"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: scripts/wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = modules | {f"{stem}.data/{path}": content for path, content in data.items()}
    files |= {f"{stem}.dist-info/{path}": content for path, content in licences.items()}
    files[f"{stem}.dist-info/METADATA"] = metadata.encode()
    files[f"{stem}.dist-info/WHEEL"] = wheel.encode()
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()

    out = folder / f"{stem}-{tag}.whl"
    for older in folder.glob(f"{stem}-*.whl"):
        older.unlink()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in files.items():
            # The same bytes give the same wheel, whenever it is made.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            mode = 0o755 if "/scripts/" in path or ".so" in path else 0o644
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def oldest_glibc(binaries):
    """The glibc of the oldest systems that have every version of a symbol that these files need."""
    needed = {}
    for path in binaries:
        printed = subprocess.run(["readelf", "--version-info", "--wide", path], check=True, capture_output=True, text=True)
        for what, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\s+Flags", printed.stdout):
            needed.setdefault(what, {}).setdefault(tuple(map(int, version.split("."))), path.name)
    newest = {what: max(versions) for what, versions in needed.items()}
    for what, version in sorted(newest.items()):
        print(f"{what}_{'.'.join(map(str, version))} is needed by {needed[what][version]}")
    glibc = newest.pop("GLIBC")
    for beside, found in BESIDE.items():
        if all(version <= found[what] for what, version in newest.items()):
            return max(glibc, beside)
    raise SystemExit("wheel: it needs a newer libstdc++ than any in BESIDE: add that to it")


if __name__ == "__main__":
    main()
