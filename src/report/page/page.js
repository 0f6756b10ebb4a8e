// page.js: what all charts share: the axis, the zoomed part, the pointer, light and dark. It starts
// when the page is loaded and draws everything once; later it redraws only after changes.

(function begin() {
    const root = document.documentElement;
    const data = unpack(JSON.parse(document.getElementById('data').textContent));
    const charts =
        data.charts.map(spec => new Chart(document.getElementById('chart-' + spec.id), spec, data));
    const axes = ['tokens', 'steps', 'time'].filter(
        name => data.runs.some(run => run.axes[name] && run.rows > 0));
    let view = wholeView(axes[0] || 'steps');

    function wholeView(axis) {
        let max = 0;
        for (const run of data.runs) {
            const along = run.axes[axis];
            if (along && along.length > 0) max = Math.max(max, along[along.length - 1]);
        }
        return {axis, min: 0, max: max || 1, isWhole: true};
    }

    function drawAll() {
        for (const chart of charts) chart.draw(view);
        whole.hidden = view.isWhole;
    }

    // ---- the bar above the charts ----

    const bar = document.getElementById('bar');
    const choice = makeHtml('div', 'choice', '', bar);
    choice.setAttribute('role', 'radiogroup');
    choice.setAttribute('aria-label', 'Horizontal axis of the charts');
    for (const name of axes) {
        const button = makeHtml('button', '', name, choice);
        button.type = 'button';
        button.setAttribute('role', 'radio');
        button.setAttribute('aria-checked', String(name === view.axis));
        button.addEventListener('click', () => {
            view = wholeView(name);
            for (const other of choice.children)
                other.setAttribute('aria-checked', String(other === button));
            drawAll();
        });
    }
    const phases = makeHtml('div', 'phases', '', bar);
    PHASES.forEach((name, phase) => {
        if (!data.runs.some(run => run.phases.some(stretch => stretch.phase === phase))) return;
        const entry = makeHtml('span', 'entry', '', phases);
        makeHtml('i', 'swatch phase' + phase, '', entry);
        makeHtml('span', '', name, entry);
    });
    const whole = makeHtml('button', 'whole', 'whole run', bar);
    whole.type = 'button';
    whole.addEventListener('click', () => {
        view = wholeView(view.axis);
        drawAll();
    });
    const readout = makeHtml('p', 'readout', '', bar);
    readout.setAttribute('aria-live', 'polite');
    const theme = makeHtml('button', 'theme', '', bar);
    theme.type = 'button';

    // ---- light and dark ----

    function isDark() {
        const chosen = root.getAttribute('data-theme');
        return chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    }
    function nameTheme() { theme.textContent = isDark() ? 'light' : 'dark'; }
    theme.addEventListener('click', () => {
        root.setAttribute('data-theme', isDark() ? 'light' : 'dark');
        nameTheme();
    });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', nameTheme);
    nameTheme();

    // ---- the pointer ----

    function rowAt(run, place) {
        const axis = run.axes[view.axis];
        return axis && axis.length > 0 ? nearestIndex(axis, place) : -1;
    }

    function describePlace(chart, place) {
        if (data.runs.length > 1) {
            return view.axis === 'time' ? figures.time(place) :
                                          `${figures.count(place)} ${view.axis}`;
        }
        const run = data.runs[0], row = rowAt(run, place);
        if (row < 0) return '';
        const parts = [];
        if (run.axes.steps) parts.push('step ' + figures.count(run.axes.steps[row]));
        if (run.axes.tokens) parts.push(figures.short(run.axes.tokens[row]) + ' tokens');
        if (run.axes.time) parts.push(figures.time(run.axes.time[row]));
        const stretch = run.phases.find(other => row >= other.from && row <= other.to);
        if (stretch) parts.push(PHASES[stretch.phase]);
        const near = data.events.find(
            event => Math.abs(
                         chart.x(run.axes[view.axis][Math.min(event.row, run.rows - 1)]) -
                         chart.x(place)) < 5);
        if (near) parts.push(`${near.kind}: ${near.text}`);
        return parts.join(' \u00b7 ');
    }

    function point(chart, place) {
        for (const other of charts)
            if (other.svg) other.showCursor(place);
        readout.textContent = place === null ? '' : describePlace(chart, place);
    }

    function zoom(from, to) {
        if (!(to > from)) return;
        view = {axis: view.axis, min: from, max: to, isWhole: false};
        drawAll();
    }

    function listen(chart) {
        let began = null;
        const pixel = event => {
            const box = chart.svg.getBoundingClientRect();
            const x = (event.clientX - box.left) * chart.svg.viewBox.baseVal.width / box.width;
            return Math.min(chart.left + chart.wide, Math.max(chart.left, x));
        };
        chart.plot.addEventListener('pointerdown', event => {
            if (event.pointerType === 'mouse' && event.button === 0) began = pixel(event);
        });
        chart.plot.addEventListener('pointermove', event => {
            const at = pixel(event);
            point(chart, chart.placeAt(at));
            if (began !== null && Math.abs(at - began) > 6) chart.showSelection(began, at);
        });
        chart.plot.addEventListener('pointerup', event => {
            const at = pixel(event);
            const from = began;
            began = null;
            if (from !== null && Math.abs(at - from) > 6) {
                zoom(chart.placeAt(Math.min(from, at)), chart.placeAt(Math.max(from, at)));
            }
        });
        chart.plot.addEventListener('pointerleave', () => {
            began = null;
            point(chart, null);
        });
        chart.plot.addEventListener('dblclick', () => {
            view = wholeView(view.axis);
            drawAll();
        });
        chart.plot.addEventListener('keydown', event => {
            const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10};
            if (!(event.key in moves)) return;
            event.preventDefault();
            const middle = (view.min + view.max) / 2;
            chart.at = Math.min(
                view.max,
                Math.max(
                    view.min,
                    (chart.at || middle) + moves[event.key] * (view.max - view.min) / 200));
            point(chart, chart.at);
        });
    }

    // ---- start ----

    function tellState() {
        root.setAttribute('data-window', root.clientWidth);
        root.setAttribute('data-width', root.scrollWidth);
        root.setAttribute('data-requests', performance.getEntriesByType('resource').length);
    }

    drawAll();
    charts.forEach(listen);
    let drawnWidth = bar.clientWidth;
    new ResizeObserver(() => {
        if (bar.clientWidth === drawnWidth) return;
        drawnWidth = bar.clientWidth;
        drawAll();
        tellState();
    }).observe(bar);
    tellState();
    root.setAttribute('data-ready', Math.round(performance.now()));
})();
