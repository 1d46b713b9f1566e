// Keys, local times, ticks. Every page reads and works without it.
(() => {
  'use strict';
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const one = (selector) => document.querySelector(selector);

  // Times: UTC as served; the switch changes all of them together.
  const zone = one('#zone');
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const show = () => {
    const local = localStorage.getItem('zone') === 'local';
    for (const time of all('time[datetime]')) {
      const at = new Date(time.dateTime);
      if (time.classList.contains('ago')) { time.title = local ? format(at) : time.dateTime; continue; }
      time.textContent = local ? format(at) : time.dateTime.replace('T', ' ');
    }
    if (zone) { zone.hidden = false; zone.textContent = local ? name : 'UTC'; zone.setAttribute('aria-label', 'Times in ' + zone.textContent + '; press to change'); }
  };
  const two = (n) => String(n).padStart(2, '0');
  const format = (at) => {
    const short = new Intl.DateTimeFormat('en', { timeZoneName: 'shortOffset' }).formatToParts(at).find((part) => part.type === 'timeZoneName');
    return at.getFullYear() + '-' + two(at.getMonth() + 1) + '-' + two(at.getDate()) + ' ' + two(at.getHours()) + ':' + two(at.getMinutes()) + ':' + two(at.getSeconds()) + ' ' + (short ? short.value : '');
  };
  const swap = () => { localStorage.setItem('zone', localStorage.getItem('zone') === 'local' ? 'utc' : 'local'); show(); };
  if (zone) zone.addEventListener('click', swap);
  show();

  // Ticks: the box in the head is for this page alone.
  const boxes = () => all('table.rows tbody input[type=checkbox]:not(:disabled)');
  const head = one('#all');
  if (head) head.addEventListener('change', () => boxes().forEach((box) => { box.checked = head.checked; }));

  // A form is sent once.
  for (const form of all('form[method=post]')) {
    form.addEventListener('submit', () => setTimeout(() => form.querySelectorAll('button').forEach((button) => { button.disabled = true; }), 0));
  }

  // The row that waits after one was decided.
  if (location.hash.startsWith('#d_')) { const row = document.getElementById(location.hash.slice(1)); if (row) row.focus({ preventScroll: false }); }

  // A page that goes on by itself, unless somebody types or ticks.
  const live = Number(document.body.dataset.live);
  if (live) {
    setInterval(() => {
      const busy = document.hidden || document.querySelector('dialog[open]') || (document.activeElement && document.activeElement.matches('main input, main select, main button, .search input'));
      if (!busy) location.reload();
    }, live * 1000);
  }

  // Keys, off while typing.
  let before = '';
  const rows = () => all('table.rows tbody tr');
  const here = () => rows().indexOf(document.activeElement && document.activeElement.closest('table.rows tbody tr'));
  const go = (by) => { const list = rows(); const next = list[Math.max(0, Math.min(list.length - 1, here() + by))]; if (next) next.focus(); };
  document.addEventListener('keydown', (event) => {
    const typing = event.target.closest('input:not([type=checkbox]), select, textarea, [contenteditable]');
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key;
    const row = rows()[here()];
    const done = () => event.preventDefault();
    if (before === 'g' && key === 'd') { location.href = '/dead'; done(); }
    else if (before === 'g' && key === 'f') { location.href = '/flow'; done(); }
    else if (key === '/') { const search = one('.search input'); if (search) search.focus(); done(); }
    else if (key === 'j') { go(1); done(); }
    else if (key === 'k') { go(-1); done(); }
    else if (key === 'x' && row) { const box = row.querySelector('input[type=checkbox]:not(:disabled)'); if (box) box.checked = !box.checked; done(); }
    else if (key === 'Enter' && row && event.target === row) { const link = row.querySelector('a.open'); if (link) link.click(); done(); }
    else if (key === 'r') { const button = one('#rows button[value=ticked]:not(:disabled)'); if (button && boxes().some((box) => box.checked)) button.click(); }
    else if (key === 'u') { swap(); }
    else if (key === '?') { const keys = one('#keys'); if (keys) keys.showModal(); done(); }
    before = key;
  });
})();
