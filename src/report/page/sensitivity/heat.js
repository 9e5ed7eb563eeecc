// The cells of the heat map: a colour for each tensor, at a type.
"use strict";

// As many colours as `page.css` has, from the lowest to the highest.
const COLOURS = [0, 1, 2, 3, 4, 5, 6, 7];

// Each decade is cut at these numbers, the finest cut first.
const CUTS = [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]];

// Few values may share the lowest step, so that the others differ more.
const MOST_IN_LOWEST = 0.15;

// Round numbers that cut the values into as many steps as there are colours, or fewer: the finest cut
// whose lowest step does not hold too many of them.
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
        set = set.slice(-(COLOURS.length - 1));
        const lowest = values.filter(value => value < set[0]).length;
        if (set.length === all || lowest <= MOST_IN_LOWEST * values.length) break;
    }
    return set;
}

// The colours of `n` steps: the last one is always the highest colour.
const colourOf = (step, n) => COLOURS[n < 2 ? COLOURS.length - 1 : Math.round(step * (COLOURS.length - 1) / (n - 1))];

// The cells at a type, and the edges of their steps. `measure` is the number that decides the colour:
// `kld`, or `relative`, which is the KLD for each byte saved over that of all tensors.
function heat(page, type, measure) {
    const at = page.tensors.map(tensor => ({tensor, cost: tensor.costs[type]})).filter(({cost}) => cost !== null);
    const sum = index => at.reduce((sum, {cost}) => sum + cost[index], 0);
    const perByte = sum(0) / sum(4);
    const cells = at.map(({tensor, cost: [kld, lo, hi, isMeasured, saved]}) => ({
        name: tensor.name, role: tensor.role, layer: tensor.layer, kld, lo, hi, saved: saved / 2 ** 20,
        relative: saved > 0 && perByte > 0 ? kld / saved / perByte : null,
        how: isMeasured ? "measured" : "predicted",
    }));
    const isDrawn = cell => cell[measure] !== null && cell[measure] > 0;
    const cuts = edges(cells.filter(isDrawn).map(cell => cell[measure]));
    for (const cell of cells) {
        const step = cuts.filter(edge => cell[measure] >= edge).length;
        cell.colour = isDrawn(cell) ? colourOf(step, cuts.length + 1) : null;
    }
    return {cells, cuts};
}
