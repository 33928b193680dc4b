export function showPlanner(node) { node.textContent = "soon"; }
