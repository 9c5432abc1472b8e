// Draws the charts of a report; their data is in the page.
import { chart } from "/static/charts.js";

const charts = JSON.parse(document.getElementById("charts").textContent);
document.querySelectorAll("figure[data-chart]").forEach((figure) => {
  chart(figure, charts[Number(figure.dataset.chart)], { height: 250 });
});
