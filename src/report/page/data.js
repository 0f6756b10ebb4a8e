// data.js: unpacks the numbers of the page. axes.c and sample.h describe the format.
//
// A row is a line of a run's metrics. A curve has some of the rows; axes give the
// position of every row.

// "3,,,5": an empty entry repeats the number before.
function unpackValues(text) {
    if (text === '') return new Float64Array(0);
    const parts = text.split(',');
    const out = new Float64Array(parts.length);
    let before = NaN;
    for (let i = 0; i < parts.length; i++) {
        if (parts[i] !== '') before = parts[i] === 'null' ? NaN : Number(parts[i]);
        out[i] = before;
    }
    return out;
}

function unpackRows(text) {
    const out = unpackValues(text);
    for (let i = 1; i < out.length; i++) out[i] += out[i - 1];
    return out;
}

// "30:1,0,15:1": ranges of rows, each with one number.
function unpackStretches(text) {
    if (text === '') return [];
    return text.split(',').map(part => {
        const colon = part.indexOf(':');
        return colon < 0 ? [1, Number(part)] :
                           [Number(part.slice(0, colon)), Number(part.slice(colon + 1))];
    });
}

function unpackAxis(axis, rows) {
    const out = new Float64Array(rows);
    if (!axis) return null;
    if ('stretches' in axis) {
        let at = 0, value = 0;
        for (const [length, growth] of unpackStretches(axis.stretches)) {
            for (let i = 0; i < length; i++) out[at++] = value += growth;
        }
        return out;
    }
    const knots = unpackValues(axis.knots);
    for (let i = 0; i < rows; i++) {
        const k = Math.floor(i / axis.every);
        const begin = k * axis.every;
        const end = Math.min(begin + axis.every, rows - 1);
        const share = end > begin ? (i - begin) / (end - begin) : 0;
        out[i] = knots[k] + share * (knots[k + 1] - knots[k]);
    }
    return out;
}

function unpackPhases(text) {
    let at = 0;
    return unpackStretches(text).map(([length, phase]) => {
        at += length;
        return {from: at - length, to: at - 1, phase};
    });
}

function unpack(data) {
    data.runs.forEach((run, index) => {
        run.index = index;
        run.axes = {};
        for (const name of ['tokens', 'steps', 'time'])
            run.axes[name] = unpackAxis(run[name], run.rows);
        run.phases = unpackPhases(run.phases);
    });
    for (const chart of data.charts) {
        for (const curve of chart.curves) {
            curve.rows = unpackRows(curve.rows);
            curve.values = unpackValues(curve.values);
            curve.errors = unpackValues(curve.errors || '');
            curve.places = {};
        }
    }
    return data;
}

// The positions of a curve's rows on an axis; computed once.
function placesOf(curve, axis, data) {
    if (!curve.places[axis]) {
        const along = data.runs[curve.run].axes[axis];
        curve.places[axis] = Float64Array.from(curve.rows, row => along ? along[row] : NaN);
    }
    return curve.places[axis];
}

// The last index with a position of at most x; -1 if there is none.
function indexAt(places, x) {
    let low = -1, high = places.length;
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (places[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

function nearestIndex(places, x) {
    const at = indexAt(places, x);
    if (at < 0) return 0;
    if (at + 1 >= places.length) return at;
    return x - places[at] <= places[at + 1] - x ? at : at + 1;
}
