// Elements of the page. Text is only ever set as text.

const byId = (id) => document.getElementById(id);

const fill = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-")) node.setAttribute(name, String(value));
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
};

// Names of operators and modules may go on in the next line after a dot or an underscore, and not in the middle of a word.
const PROSE = new Set(["td", "small", "p", "strong", "dd", "span"]);
const breakable = (child) => (typeof child === "string" && /[\w*.]{14}/.test(child)
  ? child.split(/(?<=[A-Za-z*][._])(?=[A-Za-z*])/).flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part]))
  : [child]);

const element = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, PROSE.has(tag) ? children.flat().flatMap(breakable) : children);

const drawing = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// A table whose columns are [heading, class]; each cell is a text, or [text, class, exact value].
const table = (caption, columns, rows, kind = "scroll") => {
  const heading = ([text, kind]) => element("th", { scope: "col", class: kind }, text);
  const cell = (value, column) => {
    const [text, kind, exact] = Array.isArray(value) ? value : [value];
    const content = exact == null ? text : element("data", { value: exact }, text);
    return element("td", { class: [columns[column][1], kind].filter(Boolean).join(" ") || null }, content);
  };
  return element("div", null,
    element("p", { class: "caption" }, caption),
    element("div", { class: kind, tabindex: "0", role: "region", "aria-label": caption },
      element("table", null,
        element("thead", null, element("tr", null, columns.map(heading))),
        element("tbody", null, rows.map((row) => element("tr", null, row.map(cell)))))));
};

// Buttons of which one is pressed.
const choice = (label, options, chosen, act) => {
  const buttons = options.map(([value, text]) => {
    const pressed = () => {
      for (const button of buttons) button.setAttribute("aria-pressed", button.value === value);
      act(value);
    };
    return element("button", { type: "button", value, "aria-pressed": value === chosen, onclick: pressed }, text);
  });
  return element("fieldset", { class: "choice" }, element("legend", null, label), buttons);
};

// The colours of the page, read anew when they change.
const colors = new Map();
const color = (name) => {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colors.get(name);
};
const forgetColors = () => colors.clear();
