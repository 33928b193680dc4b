// What all scripts of a page make and say things with.

export const make = (tag, properties = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
};

/** Say something below a widget; "" says nothing. busy: with a bar that moves until it is done. */
export function tell(status, words, busy = false) {
  status.replaceChildren(...(busy ? [make("progress", { ariaHidden: "true" })] : []), words);
}

/** An error in one line: of a Python traceback the last. */
export const lastLine = (error) => error.message.trim().split("\n").at(-1);
