// bands.js: draws phases as bands and strips behind the curves of a chart, and marks of events
// above them.

const PHASES = ['warmup', 'full', 'predict', 'correct'];
const EVENT_CHARTS = ['loss', 'speed', 'steps', 'memory', 'batch'];

// The share of each phase in each pixel column, in quarters. A jump has no tokens: it gets the
// width of a row, so that it is visible on every axis.
function shareColumns(chart, run) {
    const columns = Math.max(1, Math.floor(chart.wide));
    const shares = PHASES.map(() => new Float32Array(columns + 1));
    const axis = run.axes[chart.view.axis];
    if (!axis) return shares;
    const isDense = run.phases.length * 4 > columns;
    const perRow = chart.wide / Math.max(1, run.rows),
          perMove = isDense ? perRow : Math.min(6, Math.max(1, perRow));
    for (const stretch of run.phases) {
        const begin = chart.x(stretch.from > 0 ? axis[stretch.from - 1] : 0) - chart.left;
        const end = Math.max(
            chart.x(axis[stretch.to]) - chart.left, begin + (stretch.phase === 2 ? perMove : 0.05));
        if (end < 0 || begin > columns) continue;
        const weight = stretch.phase === 2 && !isDense ? 3 : 1;
        for (let c = Math.max(0, Math.floor(begin)); c <= Math.min(columns, Math.floor(end)); c++) {
            shares[stretch.phase][c] +=
                weight * Math.max(0.02, Math.min(end, c + 1) - Math.max(begin, c));
        }
    }
    for (let c = 0; c <= columns; c++) {
        const all = shares.reduce((sum, share) => sum + share[c], 0);
        if (all > 0)
            shares.forEach((share, phase) => {
                const isRare =
                    phase === 2 && share[c] > 0;  // moves are few, and what people look for
                share[c] = Math.max(isRare ? 0.25 : 0, Math.round(4 * share[c] / all) / 4);
            });
    }
    return shares;
}

// The phases of a single run are faint bands behind its curves. Below the loss, each run has a
// strip.
function drawBands(chart, strips) {
    const frames = chart.data.runs.slice(0, strips).map(
        (run, number) =>
            ({run, look: 'strip', y: chart.top + chart.inner + 4 + 8 * number, height: 5}));
    if (!chart.isMany)
        frames.push({run: chart.data.runs[0], look: 'band', y: chart.top, height: chart.inner});
    for (const frame of frames) {
        shareColumns(chart, frame.run).forEach((share, phase) => {
            const paths = outlineShares(chart, share, frame);
            for (const level in paths) {
                make(
                    'path',
                    {class: `${frame.look} phase${phase}`, 'fill-opacity': level, d: paths[level]},
                    chart.svg);
            }
        });
    }
}

// Adjacent columns with equal shares become one rectangle; there is one path for each share.
function outlineShares(chart, share, frame) {
    const paths = {};
    for (let c = 0; c < share.length; c++) {
        const level = share[c], begin = c;
        while (c + 1 < share.length && share[c + 1] === level) c++;
        if (level === 0) continue;
        const x = short(chart.left + begin), width = short(Math.min(c + 1, chart.wide) - begin);
        paths[level] = (paths[level] || '') + `M${x} ${frame.y}h${width}v${frame.height}H${x}z`;
    }
    return paths;
}

function drawEvents(chart) {
    if (!EVENT_CHARTS.includes(chart.spec.id)) return;
    for (const event of chart.data.events) {
        const axis = chart.data.runs[event.run].axes[chart.view.axis];
        if (!axis || axis.length === 0) continue;
        const place = axis[Math.min(event.row, axis.length - 1)];
        if (place < chart.view.min || place > chart.view.max) continue;
        const x = short(chart.x(place));
        const tone = chart.isMany ? 'fill run' + event.run % 8 : 'flag ' + event.kind;
        if (!chart.isMany)
            make(
                'path', {class: 'event ' + event.kind, d: `M${x} ${chart.top}v${chart.inner}`},
                chart.svg);
        const flag =
            make('path', {class: tone, d: `M${x - 4} ${chart.top - 7}h8l-4 7z`}, chart.svg);
        make('title', {}, flag).textContent = `${event.kind}: ${event.text}`;
    }
}
