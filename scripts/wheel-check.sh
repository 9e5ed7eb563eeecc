#!/usr/bin/env bash
# Checks the wheels of scripts/wheel.py: installs them into a bare environment, with no compiler on the
# PATH, with pip and with uvx, and runs the main job on the fixtures. Then the Python module reads what
# the program wrote, auditwheel reads the tag, and a GPU backend's wheel is installed beside it.
#
# uv and auditwheel come from PyPI, into .tools/wheel. Without a network, what needs them is skipped, and
# so is what needs numpy. The wheels themselves are installed without one.
set -euo pipefail
cd "$(dirname "$0")/.."
fixtures="$PWD/fixtures" tools="$PWD/.tools/wheel"
# The newest, if other versions lie there too.
wheel=$(ls -t "$PWD"/dist/gguf_kl-*.whl | head -1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "wheel-check: $*" >&2; exit 1; }
skip() { echo "skipped: $*" >&2; }

# What a system without a compiler has.
mkdir "$scratch/bin" "$scratch/home" "$scratch/work"
for program in sh dirname readlink; do
    ln -s "$(command -v "$program")" "$scratch/bin/$program"
done
bare() { env -i HOME="$scratch/home" PATH="$venv/bin:$scratch/bin" "$@"; }

# The mean KLD of a quant, from a reference written and read by the program "$@".
mean_kld() {
    rm -f ref.gz q4.kls report.json
    "$@" -q --threads 1 -m "$fixtures/tiny-f16.gguf" -t "$fixtures/eval.txt" -c 16 -n 480 \
        --encoding f32 -w ref.gz
    "$@" -q --threads 1 -m "$fixtures/tiny-q4_K_M.gguf" -r ref.gz --sidecar q4.kls --json report.json >/dev/null
    sed -n '/"kld"/,$ { /"value"/ { s/[^0-9]*\([0-9.e-]*\).*/\1/p; q } }' report.json
}
# From an empty folder to the answer, of which "$@" prints the last line.
timed() {
    local what=$1 started=$EPOCHREALTIME answer
    shift
    answer=$("$@")
    awk -v what="$what" -v from="$started" -v to="$EPOCHREALTIME" -v answer="$answer" \
        'BEGIN { printf "%-34s mean KLD %s, %.1f s after nothing was installed\n", what, answer, to - from }'
}

cd "$scratch/work"
venv=$scratch/venv
with_pip() {
    python3 -m venv "$venv"
    bare python -m pip install --quiet --no-index --disable-pip-version-check "$wheel"
    mean_kld bare kl
}
timed "pip install" with_pip

# From an empty environment to the quant to run.
mkdir "$scratch/quants"
for quant in f16 q8_0 q4_K_M q2_K; do
    cp "$fixtures/tiny-$quant.gguf" "$scratch/quants/tiny-${quant^^}.gguf"
done
picked() {
    local sentence
    rm -rf "$venv" ./*-pick
    python3 -m venv "$venv"
    bare python -m pip install --quiet --no-index --disable-pip-version-check "$wheel"
    sentence=$(bare kl pick "$scratch/quants" -t "$fixtures/eval.txt" -n 2000 -q)
    [[ $sentence == "Pick "* ]] || fail "kl pick printed: $sentence"
}
started=$EPOCHREALTIME
picked
awk -v from="$started" -v to="$EPOCHREALTIME" \
    'BEGIN { printf "kl pick of 3 quants                %.1f s after nothing was installed\n", to - from }'
version=$(cut -d- -f2 <<<"${wheel##*/}")
for name in kl gguf-kl; do
    printed=$(bare "$name" --version | head -1)
    [[ $printed == "kl $version"* ]] || fail "$name --version printed $printed"
done
# As `uv tool install` and pipx put it on the PATH.
ln -s "$venv/bin/gguf-kl" "$scratch/bin/linked"
bare linked --version >/dev/null
[ -s "$venv/share/man/man1/kl.1" ] || fail "the man page is missing"

# The program alone needs no numpy.
if bare python -c 'import numpy' 2>/dev/null; then fail "the environment has numpy already"; fi
message=$(bare python -c 'import gguf_kl' 2>&1 | tail -1) || true
[ "$message" = "ImportError: gguf_kl needs numpy: pip install numpy" ] || fail "without numpy: $message"
if bare python -m pip install --quiet --disable-pip-version-check --retries 1 numpy; then
    bare python - <<'PYTHON'
import json, gguf_kl
mean = gguf_kl.read_sidecar("q4.kls").scored["kld"].mean()
reported = json.load(open("report.json"))["models"][0]["kld"]["mean"]["value"]
assert abs(mean / reported - 1) < 1e-12, (mean, reported)
with gguf_kl.open_reference("ref.gz") as reference:
    assert len(reference) == reference.header["n_windows"]
print(f"import gguf_kl                     mean KLD {mean} of the sidecar")
PYTHON
else
    skip "import gguf_kl: numpy cannot be installed"
fi

# A backend's libraries come beside the others, and kl tries to load them.
for backend in "${wheel%/*}"/gguf_kl_*-"$version"-*.whl; do
    [ -e "$backend" ] || { skip "a GPU backend: none was built (make backend)"; break; }
    name=${backend##*/gguf_kl_}
    name=${name%%-*}
    bare python -m pip install --quiet --no-index --disable-pip-version-check "$backend"
    [ -e "$venv/lib/kl/libggml-$name.so" ] || fail "$name is not beside the other libraries"
    echo "with gguf-kl-$name:"
    bare GGML_VK_VISIBLE_DEVICES=0 kl --list-devices -v 2>&1 | grep -iE "$name" || fail "kl did not look at $name"
done

if [ ! -x "$tools/bin/auditwheel" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --retries 1 uv auditwheel || rm -rf "$tools"
fi
if [ ! -d "$tools" ]; then
    skip "uvx and auditwheel: they cannot be installed"
    exit
fi

# uvx installs into an environment of its own.
python=$(readlink -f "$venv/bin/python")
uvx() { bare "$tools/bin/uv" tool run --quiet --offline --python "$python" --from "$wheel" gguf-kl "$@"; }
timed "uvx" mean_kld uvx
[[ $(uvx --version | head -1) == "kl $version"* ]] || fail "uvx gguf-kl --version"

# By its symbols: for auditwheel, which does not know where the files will lie, the libraries that are in
# the wheel are missing.
for file in "${wheel%/*}"/gguf_kl*-"$version"-*.whl; do
    tag=$("$tools/bin/auditwheel" show --json "$file" | sed -n 's/.*"sym_tag": "\(.*\)".*/\1/p')
    [[ $file == *-py3-none-"$tag".whl ]] || fail "${file##*/}: auditwheel would tag it $tag"
    echo "auditwheel agrees with the tag of ${file##*/}"
done
