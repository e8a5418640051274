// The viewer's zone, told once; keys: / searches, g and a letter goes to a page, ? lists them; and whether somebody is
// there: an open page refreshes itself, so that only what a person does keeps a login alive.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const known = document.cookie.split("; ").find((one) => one.startsWith("towline_zone="));
  if (!known || known.slice(13) !== zone) {
    document.cookie = `towline_zone=${zone}; path=/; max-age=31536000; samesite=strict`;
    if (navigator.cookieEnabled && !known) location.reload();
  }
  const pages = { o: "/", t: "/topics", g: "/groups", m: "/messages", d: "/dead", y: "/delayed", x: "/transactions",
    c: "/cluster", a: "/alarms" };
  let armed = 0;
  document.addEventListener("keydown", (event) => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA|SELECT/.test(at.tagName) || at.isContentEditable) return;
    if (event.key === "/") {
      const field = document.querySelector(".tl-search input");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "g") {
      armed = Date.now();
      event.preventDefault();
      return;
    } else if (Date.now() - armed < 1500 && pages[event.key]) {
      location.href = pages[event.key];
    }
    armed = 0;
  });
  let told = 0;
  const tell = (event) => {
    if (!event.isTrusted || Date.now() - told < 5000 || !document.querySelector('form[action="/logout"]')) return;
    told = Date.now();
    fetch("/active", { method: "POST" }).catch(() => {});
  };
  for (const kind of ["pointerdown", "keydown", "wheel", "touchmove"]) {
    document.addEventListener(kind, tell, { capture: true, passive: true });
  }
})();
