'use strict';
// figures.js: readable numbers, and round numbers for axes; independent of charts. The names in
// `figures` are those of hy_figure_name in html.c.

const DASH = '\u2013';

function grouped(value) { return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ','); }

function scaled(value, base, units, digits) {
    let unit = 0;
    while (Math.abs(value) >= base * 0.9995 && unit < units.length - 1) {
        value /= base;
        unit++;
    }
    const places = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 :
        Math.abs(value) >= 10                                        ? 1 :
                                                                       digits;
    return value.toFixed(places) + units[unit];
}

function duration(seconds) {
    const whole = Math.round(seconds);
    if (seconds < 9.95) return trimmed(seconds, seconds < 0.095 ? 3 : 1) + ' s';
    if (whole < 60) return whole + ' s';
    if (whole < 3600)
        return Math.floor(whole / 60) + ' m ' + String(whole % 60).padStart(2, '0') + ' s';
    const minutes = Math.round(seconds / 60);
    if (minutes < 1440)
        return Math.floor(minutes / 60) + ' h ' + String(minutes % 60).padStart(2, '0') + ' m';
    const hours = Math.round(seconds / 3600);
    return Math.floor(hours / 24) + ' d ' + String(hours % 24).padStart(2, '0') + ' h';
}

// Fixed digits without trailing zeros.
function trimmed(value, digits) { return String(Number(value.toFixed(digits))); }

const figures = {
    loss: v => v.toFixed(4),
    small: v => v.toExponential(2),
    count: grouped,
    short: v => scaled(v, 1000, ['', 'k', 'M', 'B', 'T'], 2),
    bytes: v => scaled(v, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB'], 2),
    percent: v => v.toFixed(1) + ' %',
    number: v => v.toFixed(Math.abs(v) < 100 ? 2 : 1),
    time: duration,
};

function figure(kind, value) { return Number.isFinite(value) ? figures[kind](value) : DASH; }

// Numbers at an axis are round and need fewer digits.
function tickFigure(kind, value) {
    if (value === 0) return '0';
    if (kind === 'loss' || kind === 'number') return String(Number(value.toPrecision(6)));
    if (kind === 'small') return Number(value.toPrecision(3)).toExponential().replace('e+', 'e');
    if (kind === 'percent') return trimmed(value, 2) + ' %';
    if (kind === 'count')
        return value >= 1e4 ? figures.short(value) : String(Number(value.toPrecision(6)));
    return figures[kind](value).replace(
        /\.(\d*?)0+(\D*)$/, (all, digits, unit) => (digits ? '.' + digits : '') + unit);
}

// The step between ticks: 1, 2 or 5 times a power of ten; for bytes a power of two; for time the
// units of a clock.
function tickStep(kind, rough) {
    if (kind === 'bytes') return Math.pow(2, Math.ceil(Math.log2(rough)));
    if (kind === 'time' && rough > 1) {
        const clock = [
            2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400
        ];
        const found = clock.find(step => step >= rough);
        if (found) return found;
        return 86400 * tickStep('count', rough / 86400);
    }
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    return power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
}

function ticks(kind, min, max, most) {
    if (!(max > min)) return [min];
    const step = tickStep(kind, (max - min) / most);
    const found = [];
    for (let i = Math.ceil(min / step - 1e-9); i * step <= max * (1 + 1e-12) + step * 1e-9; i++)
        found.push(i * step);
    return found;
}

function logTicks(min, max) {
    const found = [];
    const factors = max / min > 1000 ? [1] : max / min > 30 ? [1, 3] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); power++) {
        for (const factor of factors) {
            const value = factor * Math.pow(10, power);
            if (value >= min * 0.999 && value <= max * 1.001)
                found.push(Number(value.toPrecision(3)));
        }
    }
    return found;
}
