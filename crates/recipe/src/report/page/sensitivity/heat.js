// The cells of the heat map: a colour for each tensor, at a type.
"use strict";

// Each decade is cut at these numbers, the finest cut first.
const CUTS = [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];

// Few values may share the lowest step, so that the others differ more.
const MOST_IN_LOWEST = 0.15;

// The most steps that can be told apart.
const MOST_STEPS = 8;

// Round numbers that cut the values into steps that can be told apart: the finest cut whose
// lowest step does not hold too many of them.
function edges(values) {
    if (values.length === 0) return [];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    let set = [];
    for (const cuts of CUTS) {
        set = [];
        for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
            set.push(...cuts.map(cut => Number((cut * 10 ** power).toPrecision(3))));
        }
        set = set.filter(edge => edge > low && edge <= high);
        const all = set.length;
        set = set.slice(1 - MOST_STEPS);
        const lowest = values.filter(value => value < set[0]).length;
        if (set.length === all || lowest <= MOST_IN_LOWEST * values.length) break;
    }
    return set;
}

// The cells at a type, and the edges of their steps. `measure` is the number that decides the colour:
// `kld`, or `relative`, which is the KLD for each byte saved over that of all tensors.
function heat(page, type, measure) {
    const at = page.tensors.map(tensor => ({tensor, cost: tensor.costs[type]})).filter(({cost}) => cost !== null);
    const sum = index => at.reduce((sum, {cost}) => sum + cost[index], 0);
    const perByte = sum(0) / sum(4);
    const cells = at.map(({tensor, cost: [kld, lo, hi, isMeasured, saved]}) => ({
        name: tensor.name, role: tensor.role, layer: tensor.layer, kld, lo, hi, saved: saved / 2 ** 20,
        relative: saved > 0 && perByte > 0 ? kld / saved / perByte : null,
        how: isMeasured ? "measured" : "predicted", isMarked: !isMeasured,
    }));
    const isDrawn = cell => cell[measure] !== null && cell[measure] > 0;
    const cuts = edges(cells.filter(isDrawn).map(cell => cell[measure]));
    for (const cell of cells) {
        const step = cuts.filter(edge => cell[measure] >= edge).length;
        cell.colour = isDrawn(cell) ? colourOf(step, cuts.length + 1) : null;
    }
    return {cells, cuts};
}
