// chart.js: one chart. It consists of SVG elements with colours from the style sheet, so that
// light, dark and print need no redrawing.
//
// Attributes of each curve (data-name, data-points, data-min, data-max, data-last) describe it for
// tests and tools.

const SVG = 'http://www.w3.org/2000/svg';

function make(tag, attributes, parent) {
    const element = document.createElementNS(SVG, tag);
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (parent) parent.appendChild(element);
    return element;
}

function makeHtml(tag, className, text, parent) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text) element.textContent = text;
    if (parent) parent.appendChild(element);
    return element;
}

const short = value => Math.round(value * 10) / 10;

class Chart {
    constructor(element, spec, data) {
        this.element = element;
        this.spec = spec;
        this.data = data;
        this.isMany = data.runs.length > 1;
        this.plot = element.querySelector('.plot');
        this.curves = spec.curves;
        this.layers = this.curves.filter(curve => curve.style === 'layer');
        this.lines = this.curves.filter(curve => curve.style !== 'layer');
        this.kinds = Array.from(new Set(this.curves.map(curve => curve.kind)));
        for (const curve of this.curves) {
            curve.tone = this.toneOf(curve);
            curve.label = this.labelOf(curve);
            curve.isHidden = curve.hidden === true;
        }
        this.makeLegend(element.querySelector('.legend'));
        if (spec.id === 'loss' || spec.log)
            this.makeScaleButton(element.querySelector('figcaption'));
    }

    makeScaleButton(parent) {
        const button = makeHtml('button', 'scale', 'log', parent);
        button.type = 'button';
        button.title = 'logarithmic scale';
        this.scaleButton = button;
        button.addEventListener('click', () => {
            this.wantsLog = !this.isLog;
            this.draw(this.view);
        });
    }

    toneOf(curve) {
        if (curve.tone) return 'class-' + curve.tone;
        if (this.isMany) return 'run' + curve.run % 8;
        if (curve.style === 'mark') return 'alarm';
        return this.layers.length > 0 ? 'ink' : 'run' + this.kinds.indexOf(curve.kind) % 8;
    }

    labelOf(curve) {
        if (!this.isMany) return curve.name;
        const kinds = new Set(this.curves.map(other => other.name.replace(/, mean.*/, '')));
        const run = this.data.runs[curve.run].name;
        const mean = curve.name.match(/mean.*/);
        if (kinds.size > 1) return run + ': ' + curve.name;
        return mean ? run + ', ' + mean[0] : run;
    }

    // ---- legend ----

    makeLegend(parent) {
        for (const curve of this.curves) {
            const button = makeHtml('button', 'entry', '', parent);
            button.type = 'button';
            button.setAttribute('aria-pressed', String(!curve.isHidden));
            const sample = make('svg', {width: 18, height: 10, 'aria-hidden': 'true'}, button);
            if (curve.style === 'layer')
                make(
                    'rect', {class: 'fill ' + curve.tone, width: 12, height: 10, x: 3, rx: 2},
                    sample);
            else if (curve.style === 'mark')
                make('path', {class: 'mark ' + curve.tone, d: 'M6 2l6 6m0-6l-6 6'}, sample);
            else
                make('path', {class: this.classOf(curve), d: 'M0 5h18'}, sample);
            makeHtml('span', 'name', curve.label, button);
            curve.output = curve.style === 'mark' ? null : makeHtml('span', 'value', '', button);
            button.addEventListener('click', () => {
                curve.isHidden = !curve.isHidden;
                button.setAttribute('aria-pressed', String(!curve.isHidden));
                this.draw(this.view);
            });
        }
        for (const limit of this.spec.limits || []) {
            const entry = makeHtml('span', 'entry', '', parent);
            const sample = make('svg', {width: 18, height: 10, 'aria-hidden': 'true'}, entry);
            make('path', {class: 'limit ' + limit.name, d: 'M0 5h18'}, sample);
            makeHtml('span', 'name', limit.name, entry);
            makeHtml('span', 'value', figure(this.spec.figure, limit.value), entry);
        }
    }

    classOf(curve) {
        const dash = this.isMany && curve.style !== 'dashed' ? ' dash' + curve.run % 8 : '';
        return 'curve ' + curve.style + ' ' + curve.tone + dash;
    }

    // ---- scales ----

    visible() { return this.curves.filter(curve => !curve.isHidden && curve.style !== 'mark'); }

    // All values inside the view, and the nearest outside it.
    forVisible(curve, visit) {
        const places = placesOf(curve, this.view.axis, this.data);
        const first = Math.max(0, indexAt(places, this.view.min) - 1);
        for (let i = first; i < places.length; i++) {
            visit(places[i], curve.values[i], i);
            if (places[i] > this.view.max) break;
        }
    }

    valuesInView() {
        const values = [];
        for (const curve of this.visible()) {
            if (curve.style === 'layer') continue;
            this.forVisible(curve, (x, y, i) => {
                if (!Number.isFinite(y) || x < this.view.min || x > this.view.max) return;
                values.push(y);
                if (curve.errors[i] > 0) values.push(y - curve.errors[i], y + curve.errors[i]);
            });
        }
        for (const top of this.stackTops()) values.push(top);
        return values.sort((a, b) => a - b);
    }

    stackTops() {
        const shown = this.layers.filter(curve => !curve.isHidden);
        if (shown.length === 0) return [];
        const tops = new Float64Array(shown[0].values.length);
        for (const curve of shown)
            curve.values.forEach((value, i) => {
                tops[i] += value || 0;
            });
        return tops;
    }

    // The range of values. A spike far above all others is cut at the frame and shown as text.
    // Limits far above the values would flatten the curves, so they are only in the legend.
    setScale() {
        const values = this.valuesInView();
        let low = values.length ? values[0] : 0,
            high = values.length ? values[values.length - 1] : 1;
        const usual = values.length ? values[Math.floor((values.length - 1) * 0.995)] : 1;
        this.isLog =
            low > 0 && (this.wantsLog === undefined ? this.startsLog(high / low) : this.wantsLog);
        this.cut = null;
        if (!this.isLog && this.layers.length === 0 && values.length > 100 &&
            high - low > 8 * (usual - low) && usual > low) {
            this.cut = high;
            high = usual + 0.2 * (usual - low);
        }
        for (const limit of this.spec.limits || []) {
            if (limit.value > high && limit.value < 1.6 * high) high = limit.value;
        }
        if (this.spec.figure === 'number' && this.spec.id === 'confidence')
            high = Math.max(high, 1);
        if (this.spec.zero && !this.isLog) low = Math.min(0, low);
        if (high === low) {
            high += Math.abs(high) * 0.1 || 1;
            if (!this.spec.zero) low -= Math.abs(low) * 0.1;
        }
        const room = (high - low) * 0.05;
        this.high = this.isLog ? high * 1.15 : high + room;
        this.low = this.isLog ? low / 1.15 : this.spec.zero && low >= 0 ? 0 : low - room;
        if (this.spec.id === 'confidence' && high === 1) this.high = 1.04;
    }

    // Several runs need a scale that shows their differences.
    startsLog(ratio) {
        return this.spec.log ? ratio > 20 : this.isMany && this.spec.id === 'loss' && ratio > 2.5;
    }

    y(value) {
        const share = this.isLog ? Math.log(value / this.low) / Math.log(this.high / this.low) :
                                   (value - this.low) / (this.high - this.low);
        return this.top + this.inner * (1 - share);
    }

    x(place) {
        return this.left + this.wide * (place - this.view.min) / (this.view.max - this.view.min);
    }
    placeAt(px) {
        return this.view.min + (this.view.max - this.view.min) * (px - this.left) / this.wide;
    }

    // ---- drawing ----

    draw(view) {
        this.view = view;
        const width = this.plot.clientWidth;
        if (width < 40) return;
        const isNarrow = width < 520;
        const isWide = this.element.classList.contains('wide');
        const strips = this.spec.id === 'loss' ? this.data.runs.length : 0;
        this.setScale();
        const labels = (this.isLog ? logTicks(this.low, this.high) :
                                     ticks(this.spec.figure, this.low, this.high, isWide ? 5 : 4))
                           .filter(value => value <= this.high);
        this.top = 10;
        this.left = 12 +
            6.4 * Math.max(3, ...labels.map(value => tickFigure(this.spec.figure, value).length));
        this.wide = width - this.left - 10;
        this.inner = isWide ? (isNarrow ? 190 : 270) : (isNarrow ? 140 : 170);
        const height = this.top + this.inner + 8 * strips + 38;

        this.svg = make('svg', {
            viewBox: `0 0 ${width} ${height}`,
            role: 'img',
            tabindex: '0',
            'aria-label': this.describe()
        });
        const clip = make('clipPath', {id: 'clip-' + this.spec.id}, make('defs', {}, this.svg));
        make(
            'rect', {x: this.left, y: this.top - 2, width: this.wide, height: this.inner + 4},
            clip);
        drawBands(this, strips);
        this.drawGrid(labels);
        this.drawPlaces(isNarrow, strips);
        const inside = make('g', {'clip-path': `url(#clip-${this.spec.id})`}, this.svg);
        this.drawStack(inside);
        this.drawLimits(inside);
        for (const curve of this.lines) this.drawCurve(curve, inside);
        drawEvents(this);
        if (this.cut !== null) {
            make(
                'text',
                {class: 'tick', x: this.left + this.wide, y: this.top + 11, 'text-anchor': 'end'},
                this.svg)
                .textContent = 'cut off above; largest value ' + figure(this.spec.figure, this.cut);
        }
        this.cursor = make('g', {class: 'cursor'}, this.svg);
        this.plot.replaceChildren(this.svg);
        if (this.scaleButton) this.scaleButton.setAttribute('aria-pressed', String(this.isLog));
        this.tellDrawn();
        this.showValues(null);
    }

    describe() {
        const parts = this.visible().map(
            curve => `${curve.label}, last ${figure(this.spec.figure, lastOf(curve))}`);
        return `${this.spec.title}, ${this.spec.unit}, over ${this.view.axis}: ${
            parts.slice(0, 8).join('; ')}`;
    }

    drawGrid(labels) {
        for (const value of labels) {
            const y = short(this.y(value));
            make('path', {class: 'grid', d: `M${this.left} ${y}h${this.wide}`}, this.svg);
            make(
                'text', {class: 'tick', x: this.left - 7, y: y + 4, 'text-anchor': 'end'}, this.svg)
                .textContent = tickFigure(this.spec.figure, value);
        }
    }

    drawPlaces(isNarrow, strips) {
        const kind = this.view.axis === 'time' ? 'time' : 'count';
        const bottom = this.top + this.inner + 8 * strips;
        const found = ticks(
            kind, this.view.min, this.view.max,
            Math.max(2, Math.floor(this.wide / (isNarrow ? 75 : 110))));
        make(
            'path', {class: 'base', d: `M${this.left} ${this.top + this.inner + 0.5}h${this.wide}`},
            this.svg);
        for (const place of found) {
            const x = short(this.x(place));
            const anchor = x > this.left + this.wide - 20 ? 'end' :
                x < this.left + 12                        ? 'start' :
                                                            'middle';
            make('path', {class: 'base', d: `M${x} ${bottom}v4`}, this.svg);
            make('text', {class: 'tick', x, y: bottom + 17, 'text-anchor': anchor}, this.svg)
                .textContent = tickFigure(kind === 'time' ? 'time' : 'short', place);
        }
        make(
            'text',
            {class: 'tick name', x: this.left + this.wide, y: bottom + 33, 'text-anchor': 'end'},
            this.svg)
            .textContent = this.view.axis;
    }

    pathOf(curve) {
        const isStair = curve.style === 'stair' || curve.style === 'dashed';
        let d = '', before = null;
        this.forVisible(curve, (place, value) => {
            if (!Number.isFinite(value) || !Number.isFinite(place)) return;
            const x = short(this.x(place)), y = short(this.y(value));
            if (before === null)
                d += `M${x} ${y}`;
            else if (isStair)
                d += before === y ? `H${x}` :
                    curve.style === 'dashed' ? `H${x}M${x} ${y}` :
                                               `H${x}V${y}`;
            else
                d += `L${x} ${y}`;
            before = y;
        });
        if (isStair && before !== null) d += `h${short(0.5)}`;
        return d;
    }

    // The area between value - error and value + error.
    bandOf(curve) {
        const upper = [], lower = [];
        this.forVisible(curve, (place, value, i) => {
            const error = curve.errors[i] || 0;
            if (!Number.isFinite(value) || !Number.isFinite(place)) return;
            upper.push(`${short(this.x(place))} ${short(this.y(value + error))}`);
            lower.unshift(`${short(this.x(place))} ${short(this.y(value - error))}`);
        });
        return upper.length > 0 ? `M${upper.concat(lower).join('L')}Z` : '';
    }

    drawCurve(curve, parent) {
        if (curve.isHidden) return;
        if (curve.style === 'mark') {
            this.drawMarks(curve, parent);
            return;
        }
        if (curve.errors.length > 0)
            make('path', {class: 'band ' + curve.tone, d: this.bandOf(curve)}, parent);
        curve.path = make('path', {class: this.classOf(curve), d: this.pathOf(curve)}, parent);
        if (curve.style !== 'dots' && curve.values.length > 2) return;
        this.forVisible(curve, (place, value) => {
            if (!Number.isFinite(value) || curve.values.length > 200) return;
            make(
                'circle', {
                    class: 'dot ' + curve.tone,
                    cx: short(this.x(place)),
                    cy: short(this.y(value)),
                    r: 2.6
                },
                parent);
        });
    }

    drawMarks(curve, parent) {
        let d = '';
        this.forVisible(curve, place => {
            const x = short(this.x(place));
            d += `M${x - 3} ${this.top + 6}l6 6m0-6l-6 6`;
        });
        curve.path = make('path', {class: 'mark ' + curve.tone, d}, parent);
    }

    // A layer keeps its value until the next row and is drawn on top of the layers before.
    drawStack(parent) {
        const shown = this.layers.filter(curve => !curve.isHidden);
        for (const curve of this.layers) curve.path = null;
        if (shown.length === 0) return;
        const rows = this.stackRows(shown[0]);
        const below = new Float64Array(rows.length);
        const isDense = rows.length > this.wide / 4;
        for (const curve of shown) {
            const upper = [], lower = [];
            rows.forEach(([x, i], k) => {
                lower.push([x, short(this.y(below[k]))]);
                below[k] += curve.values[i] || 0;
                upper.push([x, short(this.y(below[k]))]);
            });
            const d = stairs(upper, true) + stairs(lower.reverse(), false) + 'Z';
            curve.path = make(
                'path', {class: `layer fill ${curve.tone}${isDense ? ' dense' : ''}`, d}, parent);
        }
    }

    // The rows of the stack that are drawn. Of rows closer than two pixels, only the largest is
    // drawn, because the peak of memory matters.
    stackRows(curve) {
        const tops = this.stackTops(), rows = [];
        this.forVisible(curve, (place, value, i) => rows.push([short(this.x(place)), i]));
        if (rows.length < this.wide) return rows;
        const kept = [];
        for (const row of rows) {
            const last = kept[kept.length - 1];
            if (!last || Math.floor(row[0] / 2) !== Math.floor(last[0] / 2))
                kept.push(row);
            else if (tops[row[1]] > tops[last[1]])
                last[1] = row[1];
        }
        return kept;
    }

    drawLimits(parent) {
        for (const limit of this.spec.limits || []) {
            if (limit.value > this.high) continue;
            const y = short(this.y(limit.value));
            make(
                'path', {class: 'limit ' + limit.name, d: `M${this.left} ${y}h${this.wide}`},
                parent);
        }
    }

    // ---- reading values ----

    // The values at a position, or the last ones.
    showValues(place) {
        for (const curve of this.curves) {
            if (!curve.output) continue;
            const value = place === null ? lastOf(curve) : this.valueAt(curve, place);
            curve.output.textContent = figure(this.spec.figure, value);
        }
    }

    valueAt(curve, place) {
        const places = placesOf(curve, this.view.axis, this.data);
        if (places.length === 0) return NaN;
        if (curve.style === 'stair' || curve.style === 'dashed' || curve.style === 'layer') {
            const at = indexAt(places, place);
            return at < 0 ? NaN : curve.values[at];
        }
        const at = nearestIndex(places, place);
        const isPast = place > places[places.length - 1] + (this.view.max - this.view.min) * 0.01;
        return isPast ? NaN : curve.values[at];
    }

    showCursor(place) {
        this.cursor.replaceChildren();
        this.showValues(place);
        if (place === null || place < this.view.min || place > this.view.max) return;
        make(
            'path', {class: 'hair', d: `M${short(this.x(place))} ${this.top}v${this.inner}`},
            this.cursor);
        for (const curve of this.lines) {
            const value = curve.isHidden || curve.style === 'mark' || curve.style === 'noisy' ?
                NaN :
                this.valueAt(curve, place);
            if (!Number.isFinite(value) || value > this.high || value < this.low) continue;
            make(
                'circle', {
                    class: 'dot ' + curve.tone,
                    cx: short(this.x(place)),
                    cy: short(this.y(value)),
                    r: 3.5
                },
                this.cursor);
        }
    }

    showSelection(from, to) {
        this.cursor.replaceChildren();
        make(
            'rect', {
                class: 'selection',
                x: Math.min(from, to),
                y: this.top,
                width: Math.abs(to - from),
                height: this.inner
            },
            this.cursor);
    }

    tellDrawn() {
        for (const curve of this.curves) {
            if (!curve.path) continue;
            const finite = Array.from(curve.values).filter(Number.isFinite);
            const box = curve.path.getBBox();
            const told = {
                name: curve.name,
                run: curve.run,
                points: finite.length,
                min: least(finite),
                max: most(finite),
                last: lastOf(curve),
                width: Math.round(box.width),
                height: Math.round(box.height)
            };
            for (const key in told) curve.path.setAttribute('data-' + key, told[key]);
        }
    }
}

const least = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = values => values.reduce((a, b) => Math.max(a, b), -Infinity);

function lastOf(curve) {
    for (let i = curve.values.length - 1; i >= 0; i--)
        if (Number.isFinite(curve.values[i])) return curve.values[i];
    return NaN;
}

// A step path along points: forward, each height is kept until the next point; backward, the height
// changes first.
function stairs(points, isForward) {
    return points
        .map(
            ([x, y], i) => i === 0 ? (isForward ? `M${x} ${y}` : `L${x} ${y}`) :
                isForward ? `H${x}V${y}` :
                            `V${y}H${x}`)
        .join('');
}
