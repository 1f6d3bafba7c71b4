// The theory of kadam_jax.stability, worst_case and strategies, for the page's explorer.
// b1 is the paper's γ, b2 its β; bounds are logarithms, finite where the bound is e^4500.

const stabilityCoefficient = (b1, b2) => 2 / b1 - 1 / b2 - 1;
const growthRate = (b1, b2) => Math.max(0, -stabilityCoefficient(b1, b2) / 2);
const exactGrowthRate = (b1, b2) => Math.max(0, Math.log(b1) - Math.log(b2) / 2);

// ln Σ_{j=0}^{n} e^{jx}, without overflow and without cancellation near x = 0.
function logGeometricSum(n, x) {
  if (x === 0) return Math.log1p(n);
  const size = -Math.abs(x);
  return Math.max(x, 0) * n + Math.log(Math.expm1((n + 1) * size) / Math.expm1(size));
}

// ln of √(Σ_j β^j) / Σ_j γ^j, the bias correction and (1-γ)/√(1-β).
const logRatioOfSums = (n, b1, b2) =>
  logGeometricSum(n, Math.log(b2)) / 2 - logGeometricSum(n, Math.log(b1));

function logTheoremBound(n, b1, b2) {
  const C = stabilityCoefficient(b1, b2);
  const logB = C === 0 ? Math.log(n) / 2 : n * Math.max(0, -C / 2) - Math.log(Math.abs(C)) / 2;
  return logRatioOfSums(n, b1, b2) + Math.log(b2) / 2 - Math.log(b1) + logB;
}

const logExactBound = (n, b1, b2) =>
  logRatioOfSums(n, b1, b2) + logGeometricSum(n, 2 * Math.log(b1) - Math.log(b2)) / 2;

// Averages in an optimizer's numerator: a_j = Σ exp(logWeight) · decay^j, and what a_0 has on top.
// Its supremum is √(Σ_j a_j²/b_j) with the bias-corrected b_j of Adam.
const families = {
  adam: ({ n, b1 }) => ({ terms: [corrected(n, b1)] }),
  nadam: ({ n, b1 }) => ({
    terms: [[Math.log(b1) - logGeometricSum(n + 1, Math.log(b1)), b1]],
    extra: Math.exp(corrected(n, b1)[0]),
  }),
  ademamix: ({ n, b1, b3, alpha }) => ({
    terms: [corrected(n, b1), [Math.log(alpha) + Math.log1p(-b3), b3]],
  }),
  simplified_ademamix: ({ b1, alpha }) => ({ terms: [[0, b1]], extra: alpha }),
};
const corrected = (n, decay) => [-logGeometricSum(n, Math.log(decay)), decay];

function logSum(logs) {
  const largest = Math.max(...logs);
  return largest + Math.log(logs.reduce((sum, log) => sum + Math.exp(log - largest), 0));
}

function worstCase(family, point) {
  const { n, b2, momentum, batch } = point;
  if (family === "rmsprop") {
    // Each step's own update reaches 1/√(1-β); momentum sums them. All at once: in the limit.
    return {
      supremum: logGeometricSum(n, Math.log(momentum)) - Math.log1p(-b2) / 2,
      dead_growth: Math.log(momentum),
      critical_batch: Infinity,
    };
  }
  const { terms, extra = 0 } = families[family](point);
  const logs = terms.flatMap(([w, d]) => terms.map(([x, e]) =>
    w + x + logGeometricSum(n, Math.log(d) + Math.log(e) - Math.log(b2))));
  const first = terms.reduce((sum, [w]) => sum + Math.exp(w), 0);
  const slowest = Math.log(Math.max(...terms.map(([, decay]) => decay)));
  return {
    supremum: (logSum([...logs, Math.log(extra * (2 * first + extra))])
      + logGeometricSum(n, Math.log(b2))) / 2,
    dead_growth: slowest - Math.log(b2) / 2,
    critical_batch: (2 * batch * slowest) / Math.log(b2),
  };
}

function region(b1, b2) {
  if (stabilityCoefficient(b1, b2) > 0) return "B₊: bounded, as the theorem says";
  if (b1 * b1 < b2) return "B₋ by C, but γ² < β: bounded all the same";
  return "B₋ and γ² ≥ β: updates can grow without limit";
}

const strategies = {
  inverse_exp: (b, k) => -Math.expm1(Math.log1p(-b) / k),
  exp: (b, k) => b ** k,
  scaled: (b, k) => b / k,
  naive: (b) => b,
  root: (b, k) => b ** (1 / k),
};

const fixed = (value) => String(Number(value.toPrecision(4)));
function exponential(log) {
  if (log < 13) return fixed(Math.exp(log));
  return `10^${fixed(log / Math.LN10)}`;
}

function explore() {
  const form = document.getElementById("explore");
  const plane = document.getElementById("plane");
  const numbersAsked = ["b1", "b2", "n", "k", "b3", "alpha", "momentum", "batch"];
  const [SVG, MARGIN, SIDE] = ["http://www.w3.org/2000/svg", 34, 320];
  const x = (b2) => MARGIN + SIDE * b2;
  const y = (b1) => 8 + SIDE * (1 - b1);

  function draw(kind, attributes, text = "") {
    const element = document.createElementNS(SVG, kind);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.textContent = text;
    plane.append(element);
    return element;
  }

  function show(name, value, text) {
    const output = form.elements[name];
    output.dataset.value = value;
    output.value = text;
  }

  // Regions from the largest to the smallest, each drawn over the one before.
  const curve = Array.from({ length: 201 }, (_, i) => i / 200);
  const below = (b1) => `${curve.map((b2) => `${x(b2)},${y(b1(b2))}`).join(" ")} ${x(1)},${y(0)}`;
  draw("rect", { x: x(0), y: y(1), width: SIDE, height: SIDE, class: "unbounded" });
  draw("polygon", { points: below(Math.sqrt), class: "exact" });
  draw("polygon", { points: below((b2) => (2 * b2) / (1 + b2)), class: "stable" });
  draw("rect", { x: x(0), y: y(1), width: SIDE, height: SIDE, class: "frame" });
  for (const tick of [0, 0.5, 1]) {
    draw("text", { x: x(tick), y: y(0) + 16, "text-anchor": "middle" }, tick);
    draw("text", { x: x(0) - 6, y: y(tick) + 4, "text-anchor": "end" }, tick);
  }
  draw("text", { x: x(0.75), y: y(0) + 16, "text-anchor": "middle" }, "β");
  draw("text", { x: x(0) - 6, y: y(0.75) + 4, "text-anchor": "end" }, "γ");
  const stages = Object.keys(strategies).map((name) => draw("circle", { r: 4, class: name }));
  const here = draw("circle", { r: 6, class: "here" });

  function place(circle, b1, b2) {
    circle.setAttribute("cx", x(b2));
    circle.setAttribute("cy", y(b1));
  }

  function update() {
    if (!form.checkValidity()) return;
    const point = Object.fromEntries(
      numbersAsked.map((name) => [name, Number(form.elements[name].value)]),
    );
    const { b1, b2, n, k } = point;
    const worst = worstCase(form.elements.family.value, point);
    show("supremum", worst.supremum, exponential(worst.supremum));
    for (const name of ["dead_growth", "critical_batch"]) show(name, worst[name], fixed(worst[name]));
    const numbers = {
      C: stabilityCoefficient(b1, b2),
      growth_rate: growthRate(b1, b2),
      exact_growth_rate: exactGrowthRate(b1, b2),
    };
    Object.entries(numbers).forEach(([name, value]) => show(name, value, fixed(value)));
    const bounds = { theorem: logTheoremBound(n, b1, b2), exact: logExactBound(n, b1, b2) };
    Object.entries(bounds).forEach(([name, value]) => show(name, value, exponential(value)));
    show("region", region(b1, b2), region(b1, b2));
    place(here, b1, b2);
    const rows = Object.entries(strategies).map(([name, rule], i) => {
      const stage = [rule(b1, k), rule(b2, k)];
      place(stages[i], ...stage);
      const values = [...stage, stabilityCoefficient(...stage)].map(fixed);
      const cells = [name, ...values, exponential(logExactBound(n, ...stage))];
      const row = document.createElement("tr");
      row.dataset.strategy = name;
      row.dataset.value = JSON.stringify(stage);
      row.append(...cells.map((text) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        return cell;
      }));
      row.firstChild.className = name;
      return row;
    });
    document.getElementById("stages").replaceChildren(...rows);
  }

  // The address can name a point: #explore?b1=0.9&b2=0.999&n=1000&k=2&family=ademamix&b3=0.9999
  function follow() {
    const query = asked("explore");
    if (!query) return;
    for (const [name, value] of query) {
      if (["family", ...numbersAsked].includes(name)) form.elements[name].value = value;
    }
    update();
    form.scrollIntoView();
  }

  function point(event) {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = plane.getBoundingClientRect();
    const scale = plane.viewBox.baseVal.width / box.width;
    const inside = (value) => Math.min(0.999, Math.max(0.001, value)).toFixed(3);
    form.elements.b2.value = inside(((event.clientX - box.left) * scale - MARGIN) / SIDE);
    form.elements.b1.value = inside(1 - ((event.clientY - box.top) * scale - 8) / SIDE);
    update();
  }

  plane.addEventListener("pointerdown", point);
  plane.addEventListener("pointermove", point);
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", follow);
  update();
  follow();
}

explore();
