"""The style sheet of the report: readable on paper and screens, no colour as the only carrier of meaning."""

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; margin: 0; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { margin: 0; font-size: 28px; }
h2 { margin: 36px 0 8px; font-size: 20px; border-bottom: 1px solid #ddd; }
h3 { margin: 24px 0 4px; font-size: 15px; }
.headline { font-size: 18px; font-weight: 600; margin: 4px 0 16px; }
.headline.good::before { content: "\\2713  "; color: #009e73; }
.headline.bad::before { content: "\\2717  "; color: #d55e00; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 0 0 24px; }
.cards div { border: 1px solid #ddd; border-radius: 6px; padding: 6px 14px; }
.cards dt { color: #666; font-size: 12px; }
.cards dd { margin: 0; font-size: 18px; font-variant-numeric: tabular-nums; }
figure { margin: 20px 0 28px; }
figure img { width: 100%; height: auto; }
figcaption { color: #444; font-size: 13.5px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: 6px 0 12px; }
th { text-align: left; vertical-align: bottom; color: #555; font-weight: 600; }
th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid #eee; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.broken td { background: #fdeee4; }
tr.broken td:first-child { font-weight: 700; color: #b34700; white-space: nowrap; }
tr.held td:first-child { color: #007a59; }
pre { background: #f6f6f8; padding: 10px 12px; overflow-x: auto; font-size: 12.5px; margin: 4px 0; }
details { margin: 4px 0; border: 1px solid #e4e4e4; border-radius: 6px; padding: 6px 12px; }
summary { cursor: pointer; }
.quiet, .note { color: #777; }
.layout { max-width: 780px; margin: 8px 0; }
.replica { display: flex; gap: 6px; margin: 4px 0; align-items: stretch; }
.replica i { width: 190px; font-style: normal; color: #555; font-size: 13px; align-self: center; flex: none; }
.stage { border: 1px solid #b9b9c6; border-radius: 5px; padding: 2px 6px 5px; }
.stage b { font-weight: 500; font-size: 12px; color: #555; }
.stage div { display: flex; gap: 3px; }
.stage span { background: #e6eef6; border-radius: 3px; padding: 1px 6px; font-size: 12.5px; min-width: 44px; }
.stage small { color: #667; margin-left: 6px; }
"""
