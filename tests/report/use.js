// use.js: uses a report's page as people do, and writes into its root what came of it, as
// data-use-NAME="yes". Loaded by run.sh into the page around the report.

function use(page, window) {
    const root = page.documentElement;
    const tell = (name, isFine) => root.setAttribute('data-use-' + name, isFine ? 'yes' : 'no');
    const plot = page.querySelector('#chart-loss .plot');
    const readout = page.querySelector('.readout');
    const whole = page.querySelector('.whole');
    const lossPath = () =>
        page.querySelector('#chart-loss path[data-name^="training"]').getAttribute('d');

    function point(type, share) {
        const box = plot.querySelector('svg').getBoundingClientRect();
        plot.dispatchEvent(new window.PointerEvent(type, {
            pointerType: 'mouse',
            button: 0,
            bubbles: true,
            clientX: box.left + share * box.width,
            clientY: box.top + 50
        }));
    }

    const before = lossPath();
    const buttons = Array.from(page.querySelectorAll('.choice button'));
    buttons.find(button => button.textContent === 'time').click();
    tell(
        'axis',
        buttons.map(button => button.textContent).join() === 'tokens,steps,time' &&
            lossPath() !== before);
    buttons[0].click();

    const value = page.querySelector('#chart-loss .entry .value');
    const last = value.textContent;
    point('pointermove', 0.2);
    tell(
        'cursor',
        readout.textContent !== '' && value.textContent !== last &&
            page.querySelectorAll('.hair').length > 3);
    point('pointerleave', 0.2);
    plot.querySelector('svg').dispatchEvent(
        new window.KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}));
    tell('keys', readout.textContent !== '' && page.querySelectorAll('.hair').length > 3);
    point('pointerleave', 0.2);

    point('pointerdown', 0.4);
    point('pointermove', 0.6);
    const isSelecting = page.querySelectorAll('.selection').length === 1;
    point('pointerup', 0.7);
    tell('zoom', isSelecting && !whole.hidden && lossPath() !== before);
    whole.click();
    tell('whole', whole.hidden && lossPath() === before);

    const entry = page.querySelector('#chart-lr .entry');
    const count = () => page.querySelectorAll('#chart-lr path.curve[data-name]').length;
    const curves = count();
    entry.click();
    const isHidden = entry.getAttribute('aria-pressed') === 'false' && count() === curves - 1;
    entry.click();
    tell('legend', isHidden && count() === curves);

    const scale = page.querySelector('#chart-loss .scale');
    scale.click();
    const isOther = lossPath() !== before;
    scale.click();
    tell('scale', isOther && lossPath() === before);

    page.querySelector('.theme').click();
    const first = root.getAttribute('data-theme');
    page.querySelector('.theme').click();
    tell('theme', first !== null && root.getAttribute('data-theme') !== first);
}
