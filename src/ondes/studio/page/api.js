// Requests to the studio on this machine. The page lives under the token, so all addresses are
// relative to it.

const base = new URL(".", document.baseURI);

async function answer(response) {
  if (response.ok) return response;
  let text = "The studio does not answer as expected; reload the page.";
  try {
    text = (await response.json()).error ?? text;
  } catch {
    /* not JSON: the sentence above */
  }
  throw new Error(text);
}

async function send(path, options) {
  try {
    return await answer(await fetch(new URL(path, base), options));
  } catch (error) {
    if (error instanceof TypeError) {
      throw new Error("The studio has stopped: start ondes studio again.");
    }
    throw error;
  }
}

export const address = (path) => new URL(path, base).href;

export const json = async (path) => (await send(path)).json();

export const bytes = async (path, signal) => (await send(path, { signal })).arrayBuffer();

export const post = async (path, value) =>
  (await send(path, { method: "POST", body: JSON.stringify(value) })).json();

export const upload = async (file) =>
  (await send(`drop?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file })).json();
