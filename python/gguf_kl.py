"""Reads the files of kl in Python: sidecars (.kls), native references and maps of sensitivity. Needs
numpy, and nothing else.

`pip install 'gguf-kl[numpy]'` installs it, or copy this file beside your notebook.

    import gguf_kl

    sidecar = gguf_kl.read_sidecar("q4_K_M@ref.kls")
    sidecar.scored["kld"].mean()              # nats

    for cell in gguf_kl.read_map("tensors.jsonl").alone:
        cell["tensor"], cell["type"], cell["kld"]

    with gguf_kl.open_reference("ref.gz") as reference:
        for window in reference:
            window.tokens                     # (n_tokens,)
            window.logits                     # (n_rows, n_vocab)

A file that is damaged, cut off or of another kind raises ValueError, whose one line states the file and
what is wrong with it. Every checksum is verified before the bytes under it are used. Arrays that
share the bytes of a file are read-only: `.copy()` gives one to write to.

The formats are specified in formats/SIDECAR.md, formats/LOGITS.md and formats/MAP.md.
"""
import hashlib
import json
import struct
import zlib
from functools import cached_property

try:
    import numpy as np
except ModuleNotFoundError:
    # The program needs no numpy, so installing it does not install numpy.
    raise ImportError("gguf_kl needs numpy: pip install numpy") from None

__all__ = ["NOT_FINITE", "NO_TOKEN", "Map", "Reference", "Sidecar", "Window", "open_reference", "read_map",
           "read_sidecar"]

NO_TOKEN = 0xFFFFFFFF
"""`token` of a record without an actual next token, as at a window's last position."""

NOT_FINITE = 1 | 2
"""The `flags` of a record that is left out of every statistic: a row of the reference (1), or of the
evaluated model (2), is not finite."""


# Sidecars

SIDECAR_MAGIC = b"kl_sidecar_v1\n"
SIDECAR_TRAILER = 32
# Both lines of a sidecar's header, and the parts of a reference's header that are not lists.
MAX_SIDECAR_HEADER = 1 << 20
# More than any finite divergence: logits are float32.
MOST_NATS = 4 * float(np.finfo("f4").max)
U32_FIELDS = ("window", "position", "token", "flags", "ref_top", "eval_top", "ref_top_rank", "eval_top_rank")
F64_FIELDS = ("kld", "reverse_kld", "ref_nll", "eval_nll", "ref_entropy", "ref_top_p", "eval_top_p",
              "ref_unknown_p")


def _record(version):
    """The dtype of a record, without its checksum: the record's last 4 bytes."""
    fields = [(name, "<u4") for name in U32_FIELDS] + [(name, "<f8") for name in F64_FIELDS] + [("group", "<u4")]
    if version > 1:
        fields += [("span", "<u4"), ("acceptance", "<f8")]
    sizes = [np.dtype(kind).itemsize for _, kind in fields]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    return np.dtype({"names": [name for name, _ in fields], "formats": [kind for _, kind in fields],
                     "offsets": offsets, "itemsize": sum(sizes) + 4})


class Sidecar:
    """A sidecar: what `kl` computed for each scored token of an evaluation.

    header   dict: model, reference, settings (formats/SIDECAR.md lists the keys).
    tokens   (n,) structured array, one record per scored token, in the order of the file. Its fields
             are `window`, `position`, `token` (the actual next one), `flags`, `ref_top`, `eval_top`,
             `ref_top_rank`, `eval_top_rank` and `group`, all uint32; and float64: `kld`,
             `reverse_kld`, `ref_nll`, `eval_nll`, `ref_entropy` (nats), `ref_top_p`, `eval_top_p`,
             `ref_unknown_p` (probabilities). Files of version 2 also have `span` (uint32) and
             `acceptance` (float64, a probability). NaN: not known.
    texts    dict from token id to its bytes, for the ids that occur, as far as they are known.
    """

    def __init__(self, header, tokens, texts):
        self.header, self.tokens, self.texts = header, tokens, texts

    def __repr__(self):
        return f"<Sidecar of {self.label}: {len(self.tokens)} tokens in {len(np.unique(self.tokens['window']))} windows>"

    @property
    def label(self):
        """The name of the evaluation: `--label`, or else the name of the model's file; may be None."""
        model = self.header.get("model")
        return self.header.get("label") or (model.get("file_name") if isinstance(model, dict) else None)

    @property
    def scored(self):
        """The records that statistics are computed from: those whose two rows are finite."""
        return self.tokens[self.tokens["flags"] & NOT_FINITE == 0]

    def by_window(self):
        """A dict from the index of each window to its scored records, in the order of the file."""
        records = self.scored
        starts = np.flatnonzero(np.diff(records["window"].astype("i8"), prepend=-1))
        return {int(part["window"][0]): part for part in np.split(records, starts)[1:]}

    def by_group(self):
        """A dict from the name of each group to its scored records; empty without groups."""
        records = self.scored
        return {name: records[records["group"] == i] for i, name in enumerate(self.header.get("groups") or [])}

    def by_span(self):
        """A dict from the name of each span to its scored records; empty without spans."""
        records = self.scored
        return {name: records[records["span"] == i] for i, name in enumerate(self.header.get("spans") or [])}

    def text(self, token):
        """The text of a token id, or None. Part of a character reads as U+FFFD: `texts` has the bytes."""
        piece = self.texts.get(int(token))
        return None if piece is None else piece.decode(errors="replace")


def read_sidecar(path):
    """Reads a whole sidecar. Its memory is that of the file."""
    with open(path, "rb") as file:
        magic = file.read(14)
        _check(magic == SIDECAR_MAGIC, path, "is not a sidecar of kl, or of a later version")
        data = magic + file.read()
    start = data.find(b"\n", 14, MAX_SIDECAR_HEADER) + 1
    _check(start and len(data) >= start + 4, path, "the header is damaged or was cut off")
    header_crc = data[start:start + 4]
    _check(_uint(header_crc) == zlib.crc32(data[:start]), path, "the header's checksum does not match")
    header = _json(data[14:start], path)
    version = header.get("version")
    _check(version in (1, 2), path, f"has sidecar version {version}; this reader knows 1 and 2")

    dtype = _record(version)
    at, end = start + 4, len(data) - SIDECAR_TRAILER
    last = data[max(at, end):]
    _check(len(last) == SIDECAR_TRAILER and last.startswith(b"kls_end\n"), path,
           "was cut off: run the evaluation again with --resume")
    _check(_uint(last[-4:]) == zlib.crc32(header_crc + last[:-4]), path, "the trailer's checksum does not match")
    count, n_text = _uint(last[8:16]), _uint(last[16:24])
    texts_at = at + count * dtype.itemsize
    _check(texts_at + n_text == end, path, "is not as long as its numbers of records and texts make it")
    _check(_uint(last[24:28]) == zlib.crc32(data[texts_at:end]), path, "the checksum of the tokens' texts does not match")

    view, seed = memoryview(data), zlib.crc32(header_crc)
    for i in range(count):
        first = at + i * dtype.itemsize
        last = first + dtype.itemsize - 4
        if zlib.crc32(view[first:last], zlib.crc32(i.to_bytes(8, "little"), seed)) != _uint(view[last:last + 4]):
            raise ValueError(f"{path}: the checksum of record {i} does not match")
    tokens = np.frombuffer(data, dtype, count, offset=at)
    _check_values(tokens, header, path)
    return Sidecar(header, tokens, _texts(view[texts_at:end], path))


def _check_values(tokens, header, path):
    """Refuses values that no two rows give: see "Possible values" in formats/SIDECAR.md."""
    n_vocab, reference = header.get("n_vocab"), header.get("reference")
    n_vocab = n_vocab if type(n_vocab) is int and n_vocab > 0 else NO_TOKEN
    has_token, nan = tokens["token"] != NO_TOKEN, {name: np.isnan(tokens[name]) for name in F64_FIELDS}

    def within(name, most):
        return (tokens[name] >= -1e-9) & (tokens[name] <= most)

    def is_nll(name, backend):
        is_known = isinstance(backend, dict) and backend.get("llama_cpp")
        is_number = within(name, MOST_NATS) | np.isposinf(tokens[name])
        return np.where(has_token, is_number | (nan[name] & (not is_known)), nan[name])

    possible = {name: tokens[name] < n_vocab for name in ("ref_top", "eval_top")}
    possible["token"] = ~has_token | (tokens["token"] < n_vocab)
    possible |= {name: (tokens[name] >= 1) & (tokens[name] <= n_vocab) for name in ("ref_top_rank", "eval_top_rank")}
    possible |= {name: within(name, MOST_NATS) | np.isposinf(tokens[name]) for name in ("kld", "reverse_kld")}
    possible["ref_nll"] = is_nll("ref_nll", reference.get("backend") if isinstance(reference, dict) else None)
    possible["eval_nll"] = is_nll("eval_nll", header.get("backend"))
    possible["ref_entropy"] = within("ref_entropy", np.log(n_vocab) + 1e-6)
    possible |= {name: within(name, 1 + 1e-9) for name in ("ref_top_p", "eval_top_p", "ref_unknown_p")}
    if "acceptance" in tokens.dtype.names:
        possible["acceptance"] = within("acceptance", 1 + 1e-9) | np.isnan(tokens["acceptance"])
    is_scored = tokens["flags"] & NOT_FINITE == 0
    for name, holds in possible.items():
        faults = np.flatnonzero(is_scored & ~holds)
        if len(faults):
            at = faults[0]
            window, position, value = (tokens[field][at] for field in ("window", "position", name))
            raise ValueError(f"{path}: corrupt: record {at}, of window {window}, position {position}: "
                             f"{name} cannot be {value}")


def _texts(data, path):
    texts, at, last = {}, 0, -1
    while at < len(data):
        _check(len(data) - at >= 6, path, "the tokens' texts are damaged")
        token, length = struct.unpack_from("<IH", data, at)
        at += 6
        _check(token > last and length <= len(data) - at, path, "the tokens' texts are damaged")
        texts[token] = bytes(data[at:at + length])
        at, last = at + length, token
    return texts


# References

HEADER, HEAD, ROWS, INDEX, END, STATES_HEAD, CHECK_ROW = range(7)
MEMBER_START = bytes.fromhex("1f8b08040000000000ff") + bytes.fromhex("20004b4c1c00")
END_START = bytes.fromhex("1f8b08040000000000ff") + bytes.fromhex("30004b4c2c00")
END_BYTES = 70
# What surrounds a member's deflate body: its header, and gzip's trailer.
MEMBER_HEADER, MEMBER_TRAILER = 44, 8
# Deflate's limit.
MAX_RATIO = 1032
MAX_HEADER = 64 << 20
STATES_HEAD_PIECE = 16 << 20
MAX_N_CTX, MAX_N_VOCAB, MAX_N_EMBD = 1 << 26, 1 << 24, 1 << 20
STATE_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
# Rows of the head that are in float64 at a time.
HEAD_ROWS = 8192


class Window:
    """A window of a reference.

    number        its index in the text, or of the prompt in its file, from 0.
    first_scored  position of the first row; the row of position i predicts the token at i + 1.
    n_rows        number of rows.
    tokens        (n_tokens,) uint32, with an inserted BOS; read-only.
    group         the name of its group, or None.
    prompt        dict with `prompt` or `messages`, and `n_tokens`; None unless the windows are prompts.
    """

    def __init__(self, reference, entry, offsets):
        self._reference, self._offsets = reference, offsets
        self.number, n_tokens, self.n_rows, self.first_scored = (int(value) for value in entry)
        own = [self.number, n_tokens, self.n_rows, reference.header["n_vocab"], self.first_scored]
        size = 20 + 4 * n_tokens + 4 * (self.n_rows == 0)
        head = reference._member(offsets[0], offsets[1], HEAD, self.number, 0, size, size)
        if struct.unpack_from("<5I", head) != tuple(own):
            reference._fail(f"the head of window {self.number} and the index disagree")
        self.tokens = np.frombuffer(head, "<u4", n_tokens, offset=20)
        self._crc = zlib.crc32(head[:20 + 4 * n_tokens])
        if self.n_rows == 0 and self._crc != _uint(head[-4:]):
            reference._fail(f"the checksum of window {self.number} does not match")
        if n_tokens and self.tokens.max() >= reference.header["n_vocab"]:
            reference._fail(f"window {self.number} has a token that is not in the vocabulary")

    def __repr__(self):
        return f"<Window {self.number}: {len(self.tokens)} tokens, {self.n_rows} rows from position {self.first_scored}>"

    @property
    def group(self):
        return self._reference._group(self.number)

    @property
    def prompt(self):
        prompts = self._reference.header.get("prompts")
        return prompts[self.number] if prompts else None

    @property
    def next_tokens(self):
        """(n_rows,) uint32: the token that each row predicts; NO_TOKEN after the window's last one."""
        tokens = np.append(self.tokens, np.uint32(NO_TOKEN))
        return tokens[self.first_scored + 1:self.first_scored + 1 + self.n_rows]

    @cached_property
    def states(self):
        """(n_rows, n_embd) hidden states, in a reference of hidden states: float16 or float32 as the file
        has them, bf16 as float32."""
        states = self._reference._states
        if not states:
            raise ValueError(f"{self._reference.path}: holds logits, not hidden states")
        data = self._rows(STATE_BYTES[states["type"]] * states["n_embd"])
        return _floats(data, states["type"]).reshape(self.n_rows, states["n_embd"])

    @cached_property
    def logits(self):
        """(n_rows, n_vocab) logits: float32 as the file has them; in a reference of hidden states float64,
        computed from them, which gives ggml's up to rounding. Log-probabilities, with what is missing
        floored, where the header has `log_probabilities` and `floored`: a base file of llama.cpp had no
        more."""
        reference = self._reference
        n_vocab = reference.header["n_vocab"]
        if reference._states:
            return reference._logits_of(self.states)
        if reference.header["encoding"] == "f32":
            return np.frombuffer(self._rows(4 * n_vocab), "<f4").reshape(self.n_rows, n_vocab)
        return self._decoded(n_vocab)

    def _rows(self, least, most=None):
        """The bytes of all rows, which have `least` to `most` bytes each."""
        reference, n_left, parts, crc = self._reference, self.n_rows, [], self._crc
        for piece, (offset, end) in enumerate(zip(self._offsets[1:], self._offsets[2:])):
            n = min(n_left, reference.header["rows_per_piece"])
            n_left -= n
            trailing = 4 * (n_left == 0)
            data = reference._member(offset, end, ROWS, self.number, piece, n * least + trailing,
                                     n * (most or least) + trailing)
            crc = zlib.crc32(data[:len(data) - trailing], crc)
            parts.append(data[:len(data) - trailing])
        if parts and crc != _uint(data[-4:]):
            reference._fail(f"the checksum of window {self.number} does not match")
        return b"".join(parts)

    def _decoded(self, n_vocab):
        """Rows of 16-bit codes, or what stands in for them: see "Encodings of a row" in LOGITS.md."""
        reference = self._reference
        coded, exact = 16 + 2 * (n_vocab + n_vocab % 2), 4 + 4 * n_vocab
        data = self._rows(min(coded, exact), max(coded, exact))
        logits = np.empty((self.n_rows, n_vocab), "f4")
        at = 0
        for row in logits:
            form = _uint(data[at:at + 4])
            size = exact if form == 2 else coded
            if form > 2 or size > len(data) - at:
                break
            if form == 2:
                row[:] = np.frombuffer(data, "<f4", n_vocab, offset=at + 4)
            else:
                masked, low, step = np.frombuffer(data, "<f4", 3, at + 4)
                codes = np.frombuffer(data, "<u2", n_vocab, at + 16)
                row[:] = codes
                if form == 1:
                    row -= 1
                with np.errstate(all="ignore"):
                    row *= step
                    row += low
                if form == 1:
                    row[codes == 0] = masked
            at += size
        else:
            if at == len(data):
                return logits
        reference._fail(f"the rows of window {self.number} are damaged")


class Reference:
    """A native reference, open for reading. Iterate over it, or take windows by number in any order.

    path     as given.
    header   dict: model, tokenizer, text, settings, `n_vocab`, `encoding` ... (formats/LOGITS.md lists
             the keys).
    windows  (n_windows,) structured array, in the order of the file: `window` (the number),
             `n_tokens`, `n_rows`, `first_scored`.
    """

    def __init__(self, path):
        self.path = path
        self._file = open(path, "rb")
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self):
        self._size = self._file.seek(0, 2)
        start = self._bytes(0, 16)
        if start != MEMBER_START:
            self._fail("is not a native reference of kl; `kl convert` makes one of other kinds")
        end = self._bytes(max(self._size - END_BYTES, 0), END_BYTES)
        if not end.startswith(END_START):
            self._fail("is incomplete: it has no end; run the command that writes it again with --resume")
        kind, _, _, index_at, size, body_crc, crc = struct.unpack_from("<IIIQQII", end, 24)
        if zlib.crc32(end[:56]) != crc or zlib.crc32(end[60:]) != body_crc:
            self._fail("the end's checksum does not match")
        if kind != END or size != self._size or not MEMBER_HEADER <= index_at < size - END_BYTES:
            self._fail("is incomplete or damaged: its end states another length")
        # Each window has a member of its own, so an index is shorter than the file.
        index = self._member(index_at, size - END_BYTES, INDEX, 0, 0, 12, size)

        length = self._length_of(0, index_at)
        lines = self._member(0, length, HEADER, 0, 0, 24, MAX_HEADER)
        magic = b"llama_kl_divergence_v2\n"
        if not lines.startswith(magic) or lines.find(b"\n", len(magic)) != len(lines) - 1:
            self._fail("the header is damaged")
        self.header = _json(lines[len(magic):], self.path)
        self._check_header()
        self._states_at = length
        self._read_index(index, index_at)

    def _check_header(self):
        header, path = self.header, self.path
        version = _int(header, "format_version", path)
        _check(version == 1, path, f"has format version {version}; this reader knows 1")
        for key, least, most in [("n_ctx", 1, MAX_N_CTX), ("n_vocab", 1, MAX_N_VOCAB), ("n_windows", 0, None),
                                 ("n_rows", 0, None), ("rows_per_piece", 1, None)]:
            _int(header, key, path, least, most)
        encoding = header.get("encoding")
        _check(encoding in ("f32", "u16", "hidden", "hidden16"), path, f"has an unknown encoding: {encoding!r}")
        groups, prompts = header.get("groups") or [], header.get("prompts") or []
        _check(isinstance(groups, list) and isinstance(prompts, list), path, "the header is damaged: groups or prompts")
        runs = header.get("window_groups") if groups else []
        _check(isinstance(runs, list) and all(
            isinstance(run, list) and len(run) == 2 and type(run[0]) is int and 0 <= run[0] < len(groups)
            and type(run[1]) is int and run[1] > 0 for run in runs),
            path, "the header is damaged: window_groups")
        self._runs = runs
        self._states = None
        if encoding.startswith("hidden"):
            self._states = states = header.get("states")
            _check(isinstance(states, dict) and isinstance(states.get("head"), dict)
                   and isinstance(states.get("then"), list) and states.get("type") in list(STATE_BYTES),
                   path, "the header is damaged: states")
            _int(states, "n_embd", path, 1, MAX_N_EMBD)
            _int(states["head"], "bytes", path, 1)
            for step in states["then"]:
                _check(isinstance(step, dict) and step.get("op") in ("scale", "tanh", "add", "mul"), path,
                       "the header has a step after the head that this reader does not know")
                if step["op"] in ("add", "mul"):
                    n = _int(step, "n_values", path, 1)
                    _check(n in (1, header["n_vocab"]), path, "the header is damaged: n_values")
                if step["op"] == "scale":
                    _check(all(type(step.get(key)) in (int, float) for key in ("factor", "bias")), path,
                           "the header is damaged: scale")

    def _read_index(self, index, index_at):
        """Checks the index against the header and the file."""
        header = self.header
        entry, member = struct.Struct("<5I"), np.dtype("<u8")
        count = _uint(index[8:12])
        damaged = "the index is damaged"
        _check(index.startswith(b"KL_INDEX") and count == header["n_windows"], self.path, damaged)
        windows, self._offsets, at, last = [], {}, 12, self._states_at - 1
        for _ in range(count):
            _check(len(index) - at >= entry.size, self.path, damaged)
            number, n_tokens, n_rows, first, n_members = entry.unpack_from(index, at)
            at += entry.size
            pieces = -(-n_rows // header["rows_per_piece"])
            _check(n_members == 1 + pieces and len(index) - at >= 8 * n_members and n_tokens <= header["n_ctx"]
                   and first + n_rows <= n_tokens and number not in self._offsets, self.path, damaged)
            offsets = np.frombuffer(index, member, n_members, offset=at).tolist()
            at += 8 * n_members
            _check(all(a < b for a, b in zip([last] + offsets, offsets + [index_at])), self.path, damaged)
            last = offsets[-1]
            self._offsets[number] = offsets
            windows.append((number, n_tokens, n_rows, first))
        _check(at == len(index) and sum(window[2] for window in windows) == header["n_rows"], self.path, damaged)
        names = ("window", "n_tokens", "n_rows", "first_scored")
        self.windows = np.array(windows, [(name, "u4") for name in names])
        # A window's last member ends where the next one's first starts.
        starts = [offsets[0] for offsets in self._offsets.values()] + [index_at]
        for offsets, end in zip(self._offsets.values(), starts[1:]):
            offsets.append(end)
        self._states_end = starts[0]
        self._entries = {window[0]: window for window in windows}
        if header.get("prompts"):
            _check(all(number < len(header["prompts"]) for number in self._entries), self.path, damaged)

    def window(self, number):
        """The window of that number: see `windows`. Raises KeyError if the file has none."""
        if number not in self._entries:
            raise KeyError(f"{self.path} has no window {number}")
        return Window(self, self._entries[number], self._offsets[number])

    def __iter__(self):
        return (self.window(number) for number in self._entries)

    def __len__(self):
        return len(self._entries)

    def __repr__(self):
        return f"<Reference {self.path}: {len(self)} windows, {self.header['n_rows']} rows, {self.header['encoding']}>"

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @cached_property
    def head(self):
        """(n_vocab, n_embd) the head of a reference of hidden states: float16 or float32 as the file has it,
        bf16 as float32. Raises ValueError for a quantized head, which numpy alone cannot decode."""
        return self._head_and_values[0]

    @cached_property
    def _head_and_values(self):
        states, n_vocab = self._states, self.header["n_vocab"]
        if not states:
            self._fail("holds logits, not hidden states, so it has no head")
        head = states["head"]
        if head.get("type") not in list(STATE_BYTES):
            self._fail(f"its head is {head.get('type')}, which numpy alone cannot decode; "
                       "`kl convert REF.gz ROWS.gz --format kl --encoding f32` computes the rows")
        n_head = n_vocab * states["n_embd"] * STATE_BYTES[head["type"]]
        if head["bytes"] != n_head:
            self._fail("the header is damaged: the head has another size than its type gives")
        values = [step.get("n_values", 0) if step["op"] in ("add", "mul") else 0 for step in states["then"]]
        n_left, at, parts = n_head + 4 * sum(values), self._states_at, []
        while n_left:
            end = self._length_of(at, self._states_end) + at
            size = min(n_left, STATES_HEAD_PIECE)
            parts.append(self._member(at, end, STATES_HEAD, 0, len(parts), size, size))
            n_left, at = n_left - size, end
        data = b"".join(parts)
        if hashlib.sha256(memoryview(data)[:n_head]).hexdigest() != head.get("sha256"):
            self._fail("the head's SHA-256 does not match")
        ends = np.cumsum([n_head] + [4 * n for n in values]).tolist()
        return (_floats(memoryview(data)[:n_head], head["type"]).reshape(n_vocab, states["n_embd"]),
                [np.frombuffer(data, "<f4", n, at) for n, at in zip(values, ends)])

    def _logits_of(self, states):
        head, values = self._head_and_values
        states = states.astype("f8")
        logits = np.empty((len(states), len(head)))
        for first in range(0, len(head), HEAD_ROWS):
            logits[:, first:first + HEAD_ROWS] = states @ head[first:first + HEAD_ROWS].astype("f8").T
        for step, value in zip(self._states["then"], values):
            if step["op"] == "scale":
                logits = logits * np.float32(step["factor"]) + np.float32(step["bias"])
            elif step["op"] == "tanh":
                logits = np.tanh(logits)
            else:
                logits = logits + value if step["op"] == "add" else logits * value
        return logits

    def _group(self, number):
        for group, n_windows in self._runs:
            if number < n_windows:
                return self.header["groups"][group]
            number -= n_windows
        return None

    def _fail(self, what):
        raise ValueError(f"{self.path}: {what}")

    def _bytes(self, at, n):
        self._file.seek(at)
        return self._file.read(n)

    def _length_of(self, at, limit):
        """The length that a member states which the index does not list; it ends at `limit` or before."""
        header = self._bytes(at, MEMBER_HEADER)
        if len(header) < MEMBER_HEADER or zlib.crc32(header[:40]) != _uint(header[40:]):
            self._fail(f"the member at byte {at} is damaged")
        length = _uint(header[16:20])
        if not MEMBER_HEADER + MEMBER_TRAILER < length <= limit - at:
            self._fail(f"the member at byte {at} is damaged")
        return length

    def _member(self, at, end, kind, window, piece, least, most):
        """Inflates the member from `at` to `end`, which holds `least` to `most` bytes."""
        damaged = f"the member at byte {at} is damaged"
        if self._length_of(at, end) != end - at:
            self._fail(damaged)
        data = self._bytes(at, end - at)
        size, n, *own = struct.unpack_from("<5I", data, 16) if len(data) == end - at else (0, 0)
        if (not data.startswith(MEMBER_START) or own != [kind, window, piece]
                or zlib.crc32(memoryview(data)[MEMBER_HEADER:]) != _uint(data[36:40])):
            self._fail(damaged)
        if not least <= n <= min(most, MAX_RATIO * size):
            self._fail(f"{damaged}: it states {n} bytes, where {least} to {most} can be")
        inflate = zlib.decompressobj(-15)
        try:
            plain = inflate.decompress(memoryview(data)[MEMBER_HEADER:], n + 1)
        except zlib.error as error:
            raise ValueError(f"{self.path}: {damaged}: {error}") from None
        trailer = inflate.unused_data
        if (len(plain) != n or not inflate.eof or len(trailer) != MEMBER_TRAILER
                or struct.unpack("<II", trailer) != (zlib.crc32(plain), n)):
            self._fail(damaged)
        return plain


def open_reference(path):
    """Opens a native reference: reads its header and its index, and no rows."""
    return Reference(path)


# Maps

MAX_MAP = 64 << 20
# Rounding gives a token's KLD of less than 0.
LEAST_NATS = -1e-9


class Map:
    """A map of sensitivity: how far the model moves where some of its tensors are quantized.

    header    dict: model, text, settings, `windows` and `tensors` (formats/MAP.md lists the keys).
    cells     dict from the exchanged tensors, a tuple of pairs (tensor, type) in the order of the names,
              to a structured array with a record per window: `window` (its number in the text),
              `kld` (the sum over its tokens, nats) and `n_tokens`. The empty tuple is the control.
    errors    dict from a tensor to a dict from a type to its relative squared error.
    is_whole  False if the file was cut off: what it holds is valid.
    """

    def __init__(self, header, cells, errors, is_whole):
        self.header, self.cells, self.errors, self.is_whole = header, cells, errors, is_whole

    def __repr__(self):
        return f"<Map of {len(self.cells)} cells{'' if self.is_whole else ', cut off'}>"

    @property
    def alone(self):
        """The tensors that were exchanged one at a time: a structured array with the fields `tensor`,
        `type`, `kld` (the mean over the tokens, nats) and `n_tokens`, in the order of the file."""
        rows = [(*cell[0], windows["kld"].sum() / max(windows["n_tokens"].sum(), 1), windows["n_tokens"].sum())
                for cell, windows in self.cells.items() if len(cell) == 1]
        lengths = [max([len(row[i]) for row in rows] + [1]) for i in range(2)]
        return np.array(rows, [("tensor", f"U{lengths[0]}"), ("type", f"U{lengths[1]}"), ("kld", "f8"),
                               ("n_tokens", "i8")])


def read_map(path):
    """Reads a map of sensitivity, whole or cut off."""
    with open(path, "rb") as file:
        data = file.read(MAX_MAP + 1)
    _check(data.startswith(b'{"kl_map":'), path, "is not a map of kl sensitivity")
    _check(len(data) <= MAX_MAP, path, f"is larger than the {MAX_MAP >> 20} MiB that a map may have")
    lines = data[:data.rfind(b"\n") + 1].splitlines(keepends=True)
    _check(lines, path, "the header was cut off")
    is_whole = len(data) == sum(map(len, lines)) and lines[-1].startswith(b'{"n_lines":')
    end = _json(lines.pop(), path) if is_whole else None
    if end:
        is_end = end == {"n_lines": len(lines), "crc32": zlib.crc32(b"".join(lines))}
        _check(is_end, path, "the checksum or the number of its lines does not match")
    header = _json(lines[0], path)
    _check(header.get("kl_map") == 1, path, f"has map version {header.get('kl_map')}; this reader knows 1")
    windows = header.get("windows")
    _check(isinstance(windows, list) and windows and all(isinstance(window, dict) for window in windows), path,
           "the header is damaged: windows is not a list of windows")
    numbers = [(_int(window, "window", path, most=NO_TOKEN), _int(window, "n_rows", path, most=NO_TOKEN))
               for window in windows]

    cells, errors = {}, {}
    for at, line in enumerate(lines, 1):
        where = f"{path}: line {at}"
        start, key, rest = line.rpartition(b',"crc32":')
        # Version 0.1.0 wrote maps without checksums.
        if key or "crc32" in header:
            _check(key and rest == b"%d}\n" % zlib.crc32(start), where, "the checksum does not match")
        value = _json(line, where)
        if line.startswith(b'{"exchanged":'):
            _add_cell(cells, value, numbers, where)
        elif line.startswith(b'{"tensor":'):
            tensor, of_types = value["tensor"], value.get("errors")
            _check(isinstance(tensor, str) and isinstance(of_types, dict) and all(map(_is_sum, of_types.values())),
                   where, "is damaged: not weight errors")
            errors.setdefault(tensor, {}).update(of_types)
        else:
            _check(at == 1, where, "is neither a cell nor weight errors")
    dtype = [("window", "u4"), ("kld", "f8"), ("n_tokens", "i8")]
    return Map(header, {cell: np.array(rows, dtype) for cell, rows in cells.items()}, errors, is_whole)


def _add_cell(cells, line, windows, where):
    """Adds a cell's windows, or those that continue it."""
    exchanged, klds, counts = (line.get(key) for key in ("exchanged", "klds", "n_tokens"))
    is_cell = isinstance(exchanged, dict) and all(isinstance(kind, str) for kind in exchanged.values())
    is_cell = is_cell and isinstance(klds, list) and isinstance(counts, list) and 0 < len(klds) == len(counts)
    _check(is_cell, where, "is damaged: not a cell")
    rows = cells.setdefault(tuple(sorted(exchanged.items())), [])
    is_next = (line.get("from") or 0) == len(rows) and len(rows) + len(klds) <= len(windows)
    _check(is_next, where, "a cell's windows do not follow one another")
    for (window, n_rows), kld, count in zip(windows[len(rows):], klds, counts):
        is_possible = type(count) is int and 0 <= count <= n_rows and _is_sum(kld, LEAST_NATS * count)
        _check(is_possible, where, f"a sum of {kld!r} over {count!r} tokens is not possible")
        rows.append((window, kld, count))


def _is_sum(value, least=0):
    """Whether a value of JSON is a finite number, not less than `least`."""
    return type(value) in (int, float) and least <= value <= np.finfo("f8").max


# What all need.

def _check(holds, path, what):
    if not holds:
        raise ValueError(f"{path}: {what}")


def _uint(data):
    """A little-endian number of any size."""
    return int.from_bytes(data, "little")


def _json(line, path):
    """The JSON object in a line."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the header is not JSON: {error}") from None
    _check(isinstance(value, dict), path, "the header is not a JSON object")
    return value


def _int(of, key, path, least=0, most=None):
    """An integer of a header."""
    value = of.get(key)
    _check(type(value) is int and value >= least and (most is None or value <= most), path,
           f"the header is damaged: {key} is {value!r}")
    return value


def _floats(data, kind):
    """Numbers of a GGUF's type f16, bf16 or f32."""
    if kind == "bf16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"f16": "<f2", "f32": "<f4"}[kind])
