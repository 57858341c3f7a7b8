# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the report looks: on a screen, dark or light, on a phone, on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --card: #f6f8fa; --ink: #1b1f24; --soft: #4f5862; --line: #cfd6dd; --link: #0550ae;
  --good: #116329; --bad: #a40e26; --warn: #7a4a00; --bad-paper: #fff1f1; --note-paper: #eef5ff;
  --prepare: #7d90a4; --move: #0a5cc2; --down: #b97a00; --down-paper: #f6e3b5; --back: #1f883d; --undo: #7b4bd1;
  --on-bar: #ffffff; --on-prepare: #1b1f24 }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #0f1318; --card: #171c23; --ink: #e6eaef; --soft: #a3adb8; --line: #39424d; --link: #79b4ff;
  --good: #5bd078; --bad: #ff8f96; --warn: #e8b34c; --bad-paper: #2e171b; --note-paper: #14233a;
  --prepare: #5f6f80; --move: #4c95f0; --down: #e0a526; --down-paper: #4a3a10; --back: #3fb955; --undo: #a987ea;
  --on-bar: #0b0e12; --on-prepare: #ffffff } }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100% }
body { margin: 0 auto; padding: 1.25rem; max-width: 76rem; background: var(--paper); color: var(--ink);
  overflow-wrap: break-word;
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
h3 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere }
h4 { font-size: .9rem; margin: 1rem 0 .25rem; color: var(--soft) }
p { margin: .35rem 0 }
a { color: var(--link) }
a:focus-visible, [tabindex]:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
.soft { color: var(--soft) }
.said { white-space: pre-wrap } .said, .lost, .what { overflow-wrap: anywhere }
.mono { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .92em;
  overflow-wrap: anywhere }
.badge { display: inline-block; padding: 0 .5em; border: 1px solid currentColor; border-radius: 1em; font-size: .85rem;
  font-weight: 600; white-space: nowrap }
.finished { color: var(--good) } .failed, .lost { color: var(--bad) } .undone, .in_progress { color: var(--warn) }
.untouched { color: var(--soft) }
.tiles { display: flex; flex-wrap: wrap; gap: .5rem; margin: 1rem 0; padding: 0; list-style: none }
.tiles li { flex: 1 1 6.5rem; padding: .5rem .75rem; border: 1px solid var(--line); border-radius: .5rem;
  background: var(--card) }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.2; font-variant-numeric: tabular-nums }
.box { margin: .75rem 0; padding: .6rem .9rem; border: 1px solid var(--line); border-left: .3rem solid var(--link);
  border-radius: .25rem; background: var(--note-paper); overflow-wrap: anywhere }
.box.bad { border-left-color: var(--bad); background: var(--bad-paper) }
.rows, .attention { margin: 0; padding: 0; list-style: none }
.attention li { padding: .4rem 0; border-top: 1px solid var(--line) }
.rows li { display: grid; grid-template-columns: minmax(6rem, 13rem) 8rem minmax(8rem, 1fr) 9.5rem; gap: 0 .75rem;
  align-items: center; padding: .15rem 0; border-top: 1px solid var(--line) }
.rows li.axis { border-top: 0 }
.rows .name { overflow-wrap: anywhere }
.rows .took { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
svg { display: block; overflow: hidden }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--soft) }
svg .grid { stroke: var(--line); stroke-width: 1 }
svg .again { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 2 }
svg .prepare { fill: var(--prepare) } svg .move { fill: var(--move) } svg .back { fill: var(--back) }
svg .undo { fill: var(--undo) } svg .down { fill: url(#hatch); stroke: var(--down); stroke-width: 1 }
svg .hook { fill: var(--soft) } svg .bad { fill: var(--bad) } svg .open { opacity: .55 }
svg .on { fill: var(--on-bar); font-weight: 600 } svg .on.down { fill: var(--ink); stroke: var(--down-paper);
  stroke-width: 4px; paint-order: stroke }
svg .on.prepare { fill: var(--on-prepare) }
svg .end { font-size: 14px; font-weight: 700 } svg .end.good { fill: var(--good) } svg .end.bad { fill: var(--bad) }
svg .end.warn { fill: var(--warn) }
.hatch-paper { fill: var(--down-paper) } .hatch-line { stroke: var(--down); stroke-width: 1.5 }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .5rem 0 0; padding: 0; list-style: none;
  font-size: .85rem; color: var(--soft) }
.legend svg { display: inline-block; vertical-align: -2px; margin-right: .4em }
.host { margin: 1rem 0; padding: .8rem 1rem 1rem; border: 1px solid var(--line); border-radius: .5rem }
.host header { display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: baseline }
.scroll { overflow-x: auto }
table { width: 100%; border-collapse: collapse; font-size: .9rem }
th, td { padding: .2rem .5rem .2rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line) }
thead th { border-top: 0; color: var(--soft); font-weight: 600 }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.steps td, .steps thead th { white-space: nowrap } .steps .note td { white-space: pre-wrap }
.steps td.line { width: 60%; min-width: 5rem; padding-right: 0; vertical-align: middle }
.steps .step { font-weight: 600; white-space: nowrap } .steps .inner { padding-left: 1.1rem; font-weight: 400 }
.steps .note td { border-top: 0; padding-top: 0 } .steps .again th { padding-top: .6rem }
.plain { margin: 0; padding-left: 1.2rem } .plain li { margin: .3rem 0; overflow-wrap: anywhere }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 }
dt { color: var(--soft) } dd { margin: 0; overflow-wrap: anywhere }
footer { margin-top: 2rem; border-top: 1px solid var(--line); padding-top: .5rem; color: var(--soft);
  font-size: .85rem }
.skip { position: absolute; left: -99rem } .skip:focus { position: static }
@media screen and (max-width: 46rem) {
  body { padding: .75rem }
  .rows li { grid-template-columns: 1fr auto; gap: .1rem .5rem; padding: .35rem 0 }
  .rows li > .bar { grid-column: 1 / -1; grid-row: 2 } .rows li > .outcome { text-align: right }
  .rows li > .took { grid-column: 1 / -1; text-align: left; font-size: .85rem; color: var(--soft) }
  .rows li.axis > .name, .rows li.axis > .outcome, .rows li.axis > .took { display: none }
  .rows .took:not(:empty)::before { content: "held for " } .rows .on:not(.wide) { display: none }
  .host { padding: .6rem .7rem .8rem } th.number { white-space: normal }
  .steps { table-layout: fixed } .steps .inner { padding-left: .6rem }
  .steps td, .steps .step, .steps thead th { white-space: normal; overflow-wrap: anywhere }
  .what .mono { display: block }
  .steps th:nth-child(1) { width: 36% } .steps th:nth-child(2) { width: 23% } .steps th:nth-child(3) { width: 21% }
  .steps td.line { min-width: 0 }
  table { font-size: .82rem } th, td { padding-right: .35rem } dl { grid-template-columns: 1fr; gap: 0 }
  dd { margin-bottom: .35rem }
}
@media print {
  @page { margin: 13mm 12mm }
  :root { color-scheme: light; font-size: 8.5pt }
  body { max-width: none; padding: 0 }
  .rows .on:not(.wide) { display: none }
  h2 { break-after: avoid; margin-top: 1.2rem } header, h3, h4, thead { break-after: avoid }
  .overview, .host, .box, .tiles, .attention li, .rows li, tr, .plain li { break-inside: avoid }
  .host { margin: .6rem 0; padding: .4rem .7rem .5rem } th, td { padding-top: .06rem; padding-bottom: .06rem }
  h4 { margin-top: .4rem } svg { max-height: 24px }
  .scroll { overflow: visible }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact }
  a { color: inherit; text-decoration: none } .skip { display: none }
}
@media (forced-colors: active) { svg { forced-color-adjust: none; background: #fff } svg text { fill: #000 } }
"""
