for (const box of document.querySelectorAll(".searched")) {
  const body = box.querySelector("tbody"), rows = [...body.rows];
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "search " + rows.length + " rows";
  search.setAttribute("aria-label", "search the table");
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = ![...row.cells].some((cell) => cell.textContent.toLowerCase().includes(wanted));
    }
  });
  box.before(search);
  const heads = [...box.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const sign = falls ? -1 : 1;
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const isNumber = head.classList.contains("n");
      const order = (a, b) => {
        const [left, right] = [key(a), key(b)];
        if (!isNumber) return sign * left.localeCompare(right, undefined, { numeric: true });
        if (left === "" || right === "") return (left === "") - (right === "");
        return sign * (Number(left) - Number(right));
      };
      body.append(...rows.sort(order));
    });
  });
}
