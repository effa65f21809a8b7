// Buttons that copy a text.

const SAID_MS = 1500;

// Where the clipboard cannot be used, the text is selected and copied as a person would.
const toClipboard = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { "aria-hidden": true });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
};

// The text is made when it is wanted.
const copyButton = (label, text, title = label) => {
  const button = element("button", {
    type: "button", class: "copy", title,
    onclick: async () => {
      await toClipboard(text());
      button.textContent = "Copied";
      clearTimeout(button.waiting);
      button.waiting = setTimeout(() => { button.textContent = label; }, SAID_MS);
    },
  }, label);
  return button;
};

// A line of code with its button.
const copiable = (parent, text) => {
  const code = element("code", null, text);
  parent.replaceChildren(element("pre", { tabindex: "0" }, code), copyButton("Copy", () => code.textContent));
};
