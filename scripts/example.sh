#!/bin/sh
# Makes a folder to try kl in: the small models and texts of fixtures/ under the names that the docs
# use.
#
#   scripts/example.sh FOLDER
set -eu
[ $# = 1 ] || { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
fixtures="$(cd "$(dirname "$0")/../fixtures" && pwd)"
mkdir "$1"
cd "$1"
ln -s "$fixtures" fixtures
ln -s fixtures/tiny-f16.gguf fp16.gguf
ln -s fixtures/tiny-q8_0.gguf q8.gguf
ln -s fixtures/tiny-q4_K_M.gguf q4.gguf
ln -s fixtures/tiny-q2_K.gguf q2.gguf
# A pruned model: the original without 32 of the 512 neurons of its second layer's feed-forward network
# (zeros for the first rows of blk.1.ffn_gate.weight, which begin at byte 2387040).
cp fixtures/tiny-f16.gguf pruned.gguf
chmod u+w pruned.gguf
dd if=/dev/zero of=pruned.gguf bs=32 seek=74595 count=512 conv=notrunc 2>/dev/null
ln -s fixtures/architectures/mixtral.gguf moe-fp16.gguf
ln -s fixtures/architectures/mixtral-q4_0.gguf moe-q4.gguf
ln -s fixtures/peers/mlx-kld-f16.npz fp16.npz
ln -s fixtures/peers/mlx-kld-q2_K.npz q2.npz
mkdir quants
for model in q8 q4 q2; do ln -s "../$model.gguf" quants/; done
ln -s fixtures/eval.txt wiki.txt
ln -s fixtures/peers/short.txt code.txt
# The small models have no chat template of their own.
ln -s fixtures/templates/turns.jinja chat.jinja
# A prompt of each line of prompts.txt.
sed 's/["\\]/\\&/g; s/.*/{"prompt": "&"}/; /^{"prompt": ""}$/d' fixtures/prompts.txt >chat.jsonl
# Two halves of wiki.txt: recipes are made on one, and measured on the other.
half=$(($(wc -l <wiki.txt) / 2))
head -n "$half" wiki.txt >tune.txt
tail -n +"$((half + 1))" wiki.txt >test.txt
