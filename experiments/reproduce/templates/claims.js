"use strict";
// Search, filters and order of the table of claims.
// The address can name them: #claims?q=flow&verdict=holds&family=stability&sort=n

// The parameters that the address gives to a part of the page, or null.
function asked(part) {
  const [anchor, query] = location.hash.slice(1).split("?");
  return anchor === part && query ? new URLSearchParams(query) : null;
}

function browseClaims() {
  const form = document.getElementById("filter");
  const body = document.querySelector("#claims tbody");
  const rows = [...body.rows];
  const verdicts = [...form.elements.verdict.options].map((option) => option.value);
  const orders = {
    verdict: (row) => verdicts.indexOf(row.dataset.verdict),
    claim: (row) => row.id,
    n: (row) => -row.dataset.n,
  };
  const fields = ["q", "verdict", "family", "question", "sort"];

  function update() {
    const words = form.elements.q.value.toLowerCase().split(/\s+/);
    const key = orders[form.elements.sort.value] ?? ((row) => rows.indexOf(row));
    for (const row of rows) {
      const text = `${row.id} ${row.textContent}`.toLowerCase().replaceAll("_", " ");
      row.hidden = !words.every((word) => text.includes(word.replaceAll("_", " ")))
        || ["verdict", "family", "question"].some((name) =>
          form.elements[name].value && form.elements[name].value !== row.dataset[name]);
    }
    const ranked = rows.map((row) => [key(row), row]);
    body.append(...ranked.sort(([a], [b]) => (a < b ? -1 : a > b)).map(([, row]) => row));
    form.elements.count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  }

  function follow() {
    const query = asked("claims");
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (query || target?.hidden) {
      form.reset();
      for (const [name, value] of query ?? []) if (fields.includes(name)) form.elements[name].value = value;
      update();
      (query ? form.parentElement : target).scrollIntoView();
    }
  }

  for (const link of document.querySelectorAll("[data-asked]")) {
    link.href = `#claims?${link.dataset.asked}`;
  }
  form.addEventListener("input", () => {
    update();
    const given = fields.map((name) => [name, form.elements[name].value]).filter(([, value]) => value);
    history.replaceState(null, "", `#claims?${new URLSearchParams(given)}`);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", follow);
  form.hidden = false;
  update();
  follow();
}

browseClaims();

