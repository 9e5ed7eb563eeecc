// The charts of a comparison, as Vega-Lite specifications.
//
// Each has the page's models as its data. `chosen` holds the labels of the models in colour; the
// index of a label in it, its slot, decides its colour and its dashes.
"use strict";

// The series of the charts, from the result.
function seriesOf(page) {
    const inUnits = bytes => bytes > 0 ? bytes / page.unit.bytes : null;
    const models = page.models.map(model => {
        const [mean, ratio, isDraft] = [model.kld?.mean, model.ratio_to_best, model.label in page.drafts];
        const acceptance = isDraft ? model.acceptance : null;
        return {
            label: model.label, floor: model.is_noise_floor, front: model.pareto, near: model.indistinguishable_from_best,
            size: inUnits(page.sizes[model.label]),
            kld: mean?.value ?? null, lo: onLogScale(mean?.cluster_lo), hi: onLogScale(mean?.cluster_hi),
            ratio: onLogScale(ratio?.value), ratio_lo: onLogScale(ratio?.lo), ratio_hi: onLogScale(ratio?.hi),
            ccdf: model.ccdf, windows: model.by_window, breakdown: model.breakdown,
            file: inUnits(page.drafts[model.label]),
            accepted: acceptance?.mean.value ?? null, accepted_lo: acceptance?.mean.lo ?? null, accepted_hi: acceptance?.mean.hi ?? null,
            drafted: acceptance?.drafted.map(of => of.accepted.value) ?? null,
            identical: model.identical_output?.curve.map(of => [of.tokens, of.share, of.lo, of.hi]) ?? null,
        };
    });
    return {...page, models, unit: page.unit.symbol};
}

const SLOTS = [0, 1, 2, 3, 4, 5, 6, 7];
const DASHES = [[1, 0], [8, 3], [2, 2], [8, 2, 2, 2], [5, 2], [12, 3], [1, 3], [8, 2, 2, 2, 2, 2]];
const SHAPES = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left"];

const label = {field: "label", type: "nominal", title: "model"};
const chosenParam = page => ({name: "chosen", value: page.shown});
// The noise floor is far below the rest: it is drawn only if it is chosen.
const inSlot = [{calculate: "indexof(chosen, datum.label)", as: "slot"}, {filter: "datum.slot >= 0 || !datum.floor"}];
const colour = {field: "slot", type: "ordinal", legend: null, scale: {domain: SLOTS, range: SLOTS.map(slot => `var(--c${slot})`)}};
const dash = {field: "slot", type: "ordinal", legend: null, scale: {domain: SLOTS, range: DASHES}};
const shape = {field: "slot", type: "ordinal", legend: null, scale: {domain: SLOTS, range: SHAPES}};

// Lines of all models: the chosen ones in colour, the others in grey, darker under the pointer.
const lines = tooltip => [
    {
        transform: [{filter: "datum.slot < 0"}],
        params: [{name: "hovered", select: {type: "point", on: "pointerover", clear: "pointerout", fields: ["label"]}}],
        mark: {type: "line", strokeWidth: 1.2},
        encoding: {detail: label, tooltip, stroke: {condition: {param: "hovered", empty: false, value: "var(--ink)"}, value: "var(--faint)"}},
    },
    {
        transform: [{filter: "datum.slot >= 0"}],
        mark: {type: "line", strokeWidth: 2.2},
        encoding: {detail: label, color: colour, strokeDash: dash, tooltip},
    },
];

// A hollow point is a mean over few tokens.
const points = (page, tooltip) => ({
    transform: [{filter: "datum.slot >= 0"}],
    mark: {type: "point", filled: false, size: 50, opacity: 1},
    encoding: {
        detail: label, color: colour, shape, tooltip,
        fill: {condition: {test: `datum.bin.n_tokens < ${page.few}`, value: "var(--paper)"}, ...colour},
    },
});

const intervals = {
    transform: [{filter: "datum.slot >= 0 && isValid(datum.lo) && isValid(datum.hi)"}],
    mark: {type: "rule", strokeWidth: 1.5},
    encoding: {y: {field: "lo"}, y2: {field: "hi"}, color: colour},
};

// The end of a bin's interval, if a logarithmic scale has it.
const end = key => ({calculate: `datum.bin.kld.${key} > 0 ? datum.bin.kld.${key} : null`, as: key});

// A part of the breakdown, by its key: it holds a bin for each part of the tokens.
const bins = (page, field, title, more) => {
    const tooltip = [label, {field: "bin.label", title}, kldTip("bin.kld.value"),
        {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS},
        {field: "bin.n_tokens", title: "tokens", format: ","}];
    const joined = more === "joined";
    return {
        height: 300,
        params: [chosenParam(page)],
        transform: [...inSlot, {flatten: [`breakdown.${field}`], as: ["bin"]}, {filter: "datum.bin.kld && datum.bin.kld.value > 0"}, end("lo"), end("hi")],
        encoding: {
            x: {field: "bin.label", type: "ordinal", sort: null, title, axis: {labelAngle: joined ? -35 : 0, labelLimit: 110}},
            y: {...kldAxis, field: "bin.kld.value"},
            ...(joined ? {} : {xOffset: {field: "slot", type: "ordinal", scale: {domain: SLOTS}}}),
        },
        layer: [...(joined ? lines(tooltip) : []), intervals, points(page, tooltip)],
    };
};

// The largest share of tokens at which the distribution is drawn.
const MOST_SHOWN = 0.75;

// The most models whose intervals are drawn as bands.
const MAX_BANDS = 3;

// A noise floor this many times below the best quant is not drawn to scale.
const FAR_BELOW = 30;
const isLong = models => models.length > 40;

// From the lowest end of an interval to the highest; it holds 1, and is never a single point.
const ratioDomain = models => {
    const ends = models.flatMap(model => [model.ratio, model.ratio_lo, model.ratio_hi]).filter(end => end !== null);
    const [low, high] = [Math.min(1, ...ends), Math.max(1, ...ends)];
    return [low, Math.max(high, 1.05 * low)];
};

// Where to label a logarithmic axis: the densest set of round numbers with at most `most` of them.
// A narrow range has equal steps (1, 1.05, 1.1), a wide one the same numbers in each decade.
const ratioTicks = ([low, high], most) => {
    const sets = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5].map(step => {
        const first = Math.ceil(low / step - 1e-9);
        const n = high < 4 * low ? Math.floor(high / step + 1e-9) - first + 1 : 0;
        return Array.from({length: Math.max(0, n)}, (_, i) => Number(((first + i) * step).toPrecision(6)));
    });
    for (const [every, steps] of [[1, [1, 2, 3, 5]], [1, [1, 2, 5]], [1, [1, 3]], [1, [1]], [2, [1]], [3, [1]], [6, [1]]]) {
        const set = [];
        for (let power = every * Math.floor(Math.log10(low) / every); 10 ** power <= high; power += every) {
            set.push(...steps.map(step => Number((step * 10 ** power).toPrecision(6))));
        }
        sets.push(set.filter(tick => tick >= low && tick <= high));
    }
    return sets.find(set => set.length > 1 && set.length <= most) ?? [1];
};

// Where there is little room, a long name's end, where names of one family differ.
const tail = "containerSize()[0] < 560 && length(datum.label) > 17 ? '…' + slice(datum.label, -16) : datum.label";

const charts = withData(page => page.models, {
    size: page => {
        const quants = page.models.filter(model => !model.floor && model.size > 0 && model.kld > 0);
        const front = quants.filter(model => model.front);
        const withInterval = quants.filter(model => model.lo !== null && model.hi !== null);
        // A noise floor far below all quants would press them together: it is only named.
        const lowest = Math.min(...quants.map(model => model.kld));
        const floors = [...page.models.filter(model => model.floor), ...page.floors].filter(floor => floor.kld > 0);
        const drawn = floors.filter(model => model.kld > lowest / FAR_BELOW);
        const far = floors.filter(model => model.kld <= lowest / FAR_BELOW);
        const kinds = ["on the Pareto front", "not on it"];
        const floorText = {type: "text", align: "right", baseline: "bottom", dx: -4, dy: -3, limit: {expr: "width - 10"}, fill: "var(--floor)"};
        // Labels avoid what the other layers draw; a layer that draws nothing would stop them.
        const layer = (models, rest) => (models.length > 0 ? [{data: {values: models}, ...rest}] : []);
        return {
            height: 420,
            encoding: {
                x: {field: "size", type: "quantitative", title: `${page.size}, ${page.unit}`, scale: {zero: false, nice: false, padding: 24}, axis: {format: ",~r", ...fewTicks}},
                y: {...kldAxis, scale: {...kldAxis.scale, padding: 26}, field: "kld"},
            },
            layer: [
                ...layer(drawn, {
                    mark: {type: "rule", strokeDash: [6, 4], strokeWidth: 1.5, color: "var(--floor)"},
                    encoding: {x: null},
                }),
                ...layer(drawn, {
                    transform: [{calculate: "'noise floor: ' + datum.label", as: "text"}],
                    mark: floorText,
                    encoding: {x: {value: "width"}, text: {field: "text"}},
                }),
                ...layer(far, {
                    transform: [{calculate: "'noise floor, far below: ' + format(datum.kld, '.2~g')", as: "text"}],
                    mark: floorText,
                    encoding: {x: {value: "width"}, y: {value: "height"}, text: {field: "text"}},
                }),
                ...layer(front, {
                    mark: {type: "line", interpolate: "step-after", strokeWidth: 1.5, color: "var(--front)", opacity: 0.6},
                    encoding: {order: {field: "size"}},
                }),
                ...layer(withInterval, {
                    mark: {type: "rule", strokeWidth: 1.5, color: "var(--soft)"},
                    encoding: {y: {field: "lo"}, y2: {field: "hi"}},
                }),
                ...layer(quants, {
                    transform: [{calculate: "datum.front ? 'on the Pareto front' : 'not on it'", as: "kind"}],
                    mark: {type: "point", filled: true, size: isLong(page.models) ? 60 : 120, opacity: 1, stroke: "var(--paper)", strokeWidth: 1},
                    encoding: {
                        fill: {field: "kind", scale: {domain: kinds, range: ["var(--front)", "var(--other)"]}},
                        shape: {field: "kind", scale: {domain: kinds, range: ["diamond", "circle"]}},
                        tooltip: [label, {field: "size", title: `${page.size}, ${page.unit}`, format: ".3~f"}, kldTip("kld"),
                            {field: "lo", title: "interval from", format: NATS}, {field: "hi", title: "to", format: NATS}],
                    },
                }),
                ...layer(quants, {
                    name: "labels",
                    mark: {type: "text", limit: 150},
                    encoding: {text: {field: "label"}},
                }),
            ],
        };
    },

    forest: page => {
        const kinds = ["cannot be told from the best", "worse than the best"];
        const models = page.models.filter(model => model.ratio !== null);
        const domain = ratioDomain(models);
        const x = {
            type: "quantitative", title: "times as far as the best", scale: {type: "log", nice: false, padding: 14, domain},
            axis: {format: ",~r", values: {expr: `width < 360 ? [${ratioTicks(domain, 5)}] : [${ratioTicks(domain, 9)}]`}, grid: true, gridOpacity: 0.5},
        };
        return {
            height: {step: isLong(models) ? 14 : 20},
            data: {values: models},
            transform: [{calculate: `datum.near ? '${kinds[0]}' : '${kinds[1]}'`, as: "kind"}],
            encoding: {
                y: {field: "label", type: "nominal", title: null, sort: models.map(model => model.label), axis: {labelExpr: tail, labelLimit: 260, labelFontSize: isLong(models) ? 11 : 12, grid: true}},
                color: {field: "kind", scale: {domain: kinds, range: ["var(--front)", "var(--worse)"]}},
            },
            layer: [
                {data: {values: [{}]}, mark: {type: "rule", color: "var(--ink)", strokeDash: [4, 3]}, encoding: {x: {datum: 1, ...x}, y: null, color: null}},
                {
                    transform: [{filter: "isValid(datum.ratio_lo) && isValid(datum.ratio_hi)"}],
                    mark: {type: "rule", strokeWidth: 2},
                    encoding: {x: {field: "ratio_lo", ...x}, x2: {field: "ratio_hi"}},
                },
                {
                    mark: {type: "point", filled: true, size: 70, opacity: 1},
                    encoding: {
                        x: {field: "ratio", ...x},
                        shape: {field: "kind", scale: {domain: kinds, range: ["circle", "diamond"]}},
                        tooltip: [label, {field: "ratio", title: "times as far", format: ".3~r"},
                            {field: "ratio_lo", title: "interval from", format: ".3~r"}, {field: "ratio_hi", title: "to", format: ".3~r"},
                            {field: "kind", title: "verdict"}],
                    },
                },
            ],
        };
    },

    ccdf: page => ({
        height: 380,
        params: [chosenParam(page)],
        transform: [...inSlot, {flatten: ["ccdf"], as: ["point"]},
            {calculate: "datum.point[0]", as: "x"}, {calculate: "datum.point[1]", as: "y"},
            // The line is flat where most tokens are: half of the chart, if it showed the smallest KLDs too.
            {filter: `datum.x > 0 && datum.y > 0 && datum.y <= ${MOST_SHOWN}`}],
        encoding: {
            x: {field: "x", type: "quantitative", title: "KLD of a token, nats", scale: {type: "log"}, axis: {format: "~g", tickCount: 8, labelOverlap: true, ...decades}},
            y: {field: "y", type: "quantitative", title: "share of tokens with at least this KLD", scale: {type: "log"}, axis: {format: "~%", tickCount: 6, ...decades}},
        },
        layer: lines([label]),
    }),

    identical: page => {
        const share = {type: "quantitative", title: "share of answers that are still the same", scale: {domain: [0, 1]}, axis: {format: "%", tickCount: 5}};
        const tooltip = [label, {field: "x", title: "tokens", format: ",d"}, {field: "y", title: "share", format: ".1%"},
            {field: "lo", title: "interval from", format: ".1%"}, {field: "hi", title: "to", format: ".1%"}];
        const isStepped = layer => ({...layer, mark: {...layer.mark, interpolate: "step-after"}});
        return {
            height: 340,
            params: [chosenParam(page)],
            transform: [...inSlot, {filter: "isValid(datum.identical)"}, {flatten: ["identical"], as: ["point"]},
                {calculate: "datum.point[0]", as: "x"}, {calculate: "datum.point[1]", as: "y"},
                {calculate: "datum.point[2]", as: "lo"}, {calculate: "datum.point[3]", as: "hi"}],
            encoding: {
                x: {field: "x", type: "quantitative", title: "tokens from the start of the answer", scale: {nice: false}, axis: {format: ",d", tickMinStep: 1, ...fewTicks}},
                y: {...share, field: "y"},
            },
            layer: [
                // More bands than these would hide each other.
                {
                    transform: [{filter: `datum.slot >= 0 && isValid(datum.lo) && isValid(datum.hi) && ${SLOTS.map(slot => `isValid(chosen[${slot}])`).join(" + ")} <= ${MAX_BANDS}`}],
                    mark: {type: "area", interpolate: "step-after", opacity: 0.14, line: false},
                    encoding: {y: {...share, field: "lo"}, y2: {field: "hi"}, detail: label, color: colour},
                },
                ...lines(tooltip).map(isStepped),
            ],
        };
    },

    drafts: page => {
        const models = page.models.filter(model => model.file > 0 && model.accepted !== null);
        const withInterval = models.filter(model => model.accepted_lo !== null && model.accepted_hi !== null);
        return {
            height: 340,
            data: {values: models},
            encoding: {
                x: {field: "file", type: "quantitative", title: `file, ${page.unit}`, scale: {zero: false, nice: false, padding: 24}, axis: {format: ",~r", ...fewTicks}},
                y: {field: "accepted", type: "quantitative", title: "drafted tokens that are accepted", scale: {zero: false, nice: false, padding: 20}, axis: {format: ".5~p", tickCount: 6}},
            },
            layer: [
                ...(withInterval.length > 0 ? [{
                    data: {values: withInterval},
                    mark: {type: "rule", strokeWidth: 1.5, color: "var(--soft)"},
                    encoding: {y: {field: "accepted_lo"}, y2: {field: "accepted_hi"}},
                }] : []),
                {
                    mark: {type: "point", filled: true, size: isLong(page.models) ? 60 : 90, opacity: 1, color: "var(--front)", stroke: "var(--paper)", strokeWidth: 1},
                    encoding: {
                        tooltip: [label, {field: "file", title: `file, ${page.unit}`, format: ".3~f"}, {field: "accepted", title: "accepted", format: ".2%"},
                            {field: "accepted_lo", title: "interval from", format: ".2%"}, {field: "accepted_hi", title: "to", format: ".2%"}],
                    },
                },
                {name: "labels", mark: {type: "text", limit: 150}, encoding: {text: {field: "label"}}},
            ],
        };
    },

    drafted: page => ({
        height: 340,
        params: [chosenParam(page)],
        transform: [...inSlot, {filter: "isValid(datum.drafted)"}, {flatten: ["drafted"], as: ["y"]}, {calculate: "1", as: "one"},
            {window: [{op: "sum", field: "one", as: "x"}], groupby: ["label"]}],
        encoding: {
            x: {field: "x", type: "quantitative", title: "drafted tokens", scale: {zero: false, nice: false}, axis: {format: "d", tickMinStep: 1, ...fewTicks}},
            y: {field: "y", type: "quantitative", title: "accepted in a round, on average", scale: {nice: true}, axis: {format: "~r", tickCount: 6}},
        },
        layer: lines([label, {field: "x", title: "drafted", format: "d"}, {field: "y", title: "accepted", format: ".2f"}]),
    }),

    confidence: page => bins(page, "by_confidence", "probability of the original's top token", "joined"),
    position: page => bins(page, "by_position", `position in the ${page.window}`, "joined"),
    groups: page => bins(page, "by_group", "group"),
    spans: page => bins(page, "by_span", "span"),

    windows: page => ({
        height: 320,
        params: [chosenParam(page)],
        transform: [...inSlot, {flatten: ["windows"], as: ["point"]},
            {calculate: "datum.point[0]", as: "x"}, {calculate: "datum.point[1]", as: "y"}, {filter: "datum.y > 0"}],
        encoding: {
            x: {field: "x", type: "quantitative", title: page.window, scale: {zero: false, nice: false}, axis: {format: ",d", tickMinStep: 1, ...fewTicks}},
            y: {...kldAxis, field: "y"},
        },
        layer: lines([label]),
    }),
});
