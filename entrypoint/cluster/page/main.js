// Asks the head every POLL_SECONDS, and says when it does not answer.
"use strict";

const POLL_SECONDS = 2, LOST_SECONDS = 8, SLOW_SECONDS = 10, HIDDEN_SECONDS = 30, MANY_NODES = 60, MOST_SAID = 12;
let state = null, heard = 0, asked = performance.now(), shownJob, confirmed, slowAt = -Infinity, whole = null, answering = false, detailing = false, troubled = "", isRefused = false, failedLog = "";
const seconds = since => (performance.now() - since) / 1000;

async function refresh() {
  if (answering || (document.hidden && state && seconds(heard) < HIDDEN_SECONDS)) return;
  answering = true;
  const job = picked();
  try {
    by("back").hidden = LIST === undefined ? job === null : isList();
    if (isList()) return await refreshList();
    const isSlow = seconds(slowAt) >= SLOW_SECONDS;
    const isBrief = state?.expected_workers > MANY_NODES && !isSlow;
    const answer = await ask(`v1/state?${new URLSearchParams({...(isBrief ? {brief: 1} : {}), ...(job === null ? {} : {job})})}`);
    if (job !== picked()) return;
    isRefused = answer.status === 401;
    if (isRefused) return tick();
    const news = await answer.json();
    if (!answer.ok) return void (troubled = news.error);
    troubled = "";
    state = news;
    heard = performance.now();
    const isBack = !by("lost").hidden;
    by("lost").hidden = true;
    if (news.job !== shownJob) {
      forgetCurves();
      beginLog(log.name);
      offerStop();
    }
    if (news.job !== shownJob || isBack) listen(news.job); // the browser may wait on a dead connection
    shownJob = news.job;
    whole = isBrief && whole ? {...news, nodes: merged(whole.nodes, news.nodes)} : news;
    show(state = withEnd(news));
    by("of-nodes").hidden = !news.is_live;
    if (news.is_live) showNodes(whole);
    refreshDetails(isSlow, news.progress?.step);
  } catch {
    troubled = ""; // the banner says since when
    isRefused = false;
  } finally {
    answering = false;
  }
}

/** Links to the parts of the page that are there. The address stays: it names the run. */
function showJumps() {
  const there = [...document.querySelectorAll("main > section")].filter(part => !part.hidden && part.querySelector("h2:not(.spoken):not([hidden])")).map(part => part.querySelector("h2"));
  const names = there.map(title => title.textContent);
  if (names.join() === [...by("jumps").children].map(one => one.textContent).join()) return;
  by("jumps").replaceChildren(...there.map(title => {
    const button = make("button", {type: "button"}, title.textContent);
    button.addEventListener("click", () => {
      title.tabIndex = -1;
      title.focus({preventScroll: true});
      title.scrollIntoView();
    });
    return button;
  }));
}

/** Show the list of runs, now and then, in place of a run. */
async function refreshList() {
  document.body.classList.add("list");
  by("runs-title").className = "spoken"; // the first heading says it
  if (seconds(slowAt) < SLOW_SECONDS) return;
  slowAt = performance.now();
  document.title = `Runs in ${LIST}`;
  by("name").textContent = `Runs in ${LIST}`;
  await refreshRuns();
  [heard, by("lost").hidden] = [performance.now(), true];
}

/** Begin with another run, or with the list. */
function turn() {
  answering = false; // the answer about the other run is passed over
  [state, shownJob, whole, slowAt, asked, failedLog] = [null, undefined, null, -Infinity, performance.now(), ""];
  document.body.classList.toggle("list", isList());
  by("runs-title").className = "";
  smoothing.set(weightOf(inAddress().get("smoothing")));
  source?.close();
  by("runs").hidden = !isList();
  refresh();
}

/** Ask for what comes from storage, which may be slow. The state does not wait for it. */
async function refreshDetails(isSlow, step) {
  if (detailing) return;
  detailing = true;
  try {
    if (isSlow) {
      slowAt = performance.now();
      await refreshCurves(shownJob);
      await refreshGpus();
      await refreshRuns();
    }
    await refreshSamples(shownJob, step);
    await refreshLogs(shownJob);
  } catch {
    // They are asked for again.
  } finally {
    detailing = false;
  }
}

/** Pure: all nodes, as they were, or as they are if there is something to say about them. */
function merged(known, news) {
  const newer = new Map(news.map(node => [node.node, node]));
  return known.map(node => newer.get(node.node) ?? {...node, present: true, joined: true, warnings: []});
}

function show(news) {
  const [word, colour, mark] = headline(news);
  if (by("state").textContent !== word) by("state").textContent = word;
  by("state").className = `chip ${colour}`;
  by("state").dataset.mark = mark;
  const name = nameOf(news);
  by("name").textContent = news.is_live ? `${name} on ${news.head}` : name;
  document.title = `${mark} ${word}: ${name}`;
  const p = news.progress;
  by("bar").hidden = !p?.total_steps;
  by("bar").className = colour;
  by("bar").value = p?.total_steps ? p.step / p.total_steps : 0;
  by("facts").replaceChildren(...pairs(facts(news)));
  const given = Object.entries(news.flags ?? {}).map(([name, text]) => [name || "command", text]);
  by("flags").hidden = !given.length;
  by("of-samples").hidden = !maySample(news);
  by("given").replaceChildren(...pairs(given));
  by("controls").hidden = !news.may_stop || Boolean(news.outcome || news.isLost);
  showFailedLog(news.outcome);
  showVerdict(news);
  if (isHeadLost(news) !== drawnLost) draw();
  showJumps();
  tick();
}

/** Open the log of the attempt that has failed last, once, at its end, above the curves. */
function showFailedLog(outcome) {
  const logs = by("of-logs"), isFirst = Boolean(outcome?.log);
  if (isFirst !== (logs.nextElementSibling === by("curves"))) isFirst ? by("curves").before(logs) : logs.parentElement.append(logs);
  if (!outcome?.log || failedLog === outcome.log) return;
  failedLog = outcome.log;
  refreshNames(shownJob, shownJob ? {job: shownJob} : {}).then(() => openLog(failedLog)).catch(() => failedLog = "");
}

/** Say whether the run is well, and what needs attention. */
function showVerdict(news) {
  const goesOn = news.outcome ? earlier(entries, news) : [...lately(entries, news), ...slowRewards(curves)];
  const found = worstFirst([...goesOn, ...attention(news)]);
  const more = found.length - MOST_SAID, [colour, sentence] = verdict(news, found);
  by("verdict").className = colour;
  if (by("verdict").textContent !== sentence) by("verdict").textContent = sentence; // it is read aloud
  by("sentence").textContent = (news.outcome && ending()) || (news.isLost ? whatFollows(news) : news.sentence);
  const resume = isHeadLost(news) ? resumption(entries) : news.outcome?.resume;
  by("bring").hidden = !isWithoutJob(news) || Boolean(news.outcome) || isHeadLost(news);
  by("resume").hidden = !resume;
  by("resume").querySelector("code").textContent = resume || "";
  by("attention").hidden = !found.length;
  by("attention").querySelector("ul").replaceChildren(
    ...found.slice(0, MOST_SAID).map(([kind, sentence]) => make("li", {className: kind}, sentence)),
    ...(more > 0 ? [make("li", {className: "warn"}, `and ${more} more: the nodes' filter finds them`)] : []),
  );
}

/** The state of a run, with the end that its journal tells before its head does. */
function withEnd(news) {
  const end = !news.outcome && !shownJob && news.is_live && endAfter(entries, news.at, news.run.run_dir);
  const unheard = entries.filter(event => event.kind === "failure" && Date.parse(event.at) > Date.parse(news.at)).length;
  return end ? {...news, outcome: end, isLost: false, failures: news.failures + unheard} : news;
}

/** Say when the run began, and for how long it has run. */
function showTimes() {
  const said = timesOf(state, seconds(heard)), text = said.map(part => part.textContent ?? part).join("");
  if (by("times").textContent !== text) by("times").replaceChildren(...said); // a reader may look at a title
}

/** Say how old the answer is. */
function tick() {
  if (state) showTimes();
  if (isRefused && !state?.outcome) return sayRefused();
  if (isList() || state?.is_live === false) return tickKept();
  if (!state) {
    if (seconds(asked) > LOST_SECONDS) say(troubled ? `The head answers, but cannot read the run: ${troubled}.` : "The head has not answered yet.");
    return;
  }
  const ended = withEnd(state);
  if (ended !== state) return show(state = ended);
  const age = seconds(heard), at = clock(state.at);
  by("updated").textContent = state.outcome ? "" : `updated ${duration(age)} ago`; // what has ended changes no more
  // Browsers run the clocks of a hidden page once a minute.
  if (age < (document.hidden ? 5 * HIDDEN_SECONDS : LOST_SECONDS) || seconds(asked) < LOST_SECONDS) return;
  if (state.outcome) return void (by("updated").textContent = `The head has ended. This is the state of ${at}.`);
  if (troubled) {
    by("verdict").className = "bad";
    by("verdict").textContent = "Look at the run directory's storage.";
    return void say(`The head answers, but it has not been able to read the run since ${at}: ${troubled}. What you see is from then.`);
  }
  const isWorkerDue = isAwaited(state.failover, age), isTaken = !isWorkerDue && state.failover?.after != null;
  if (!state.isLost || state.isWorkerDue !== isWorkerDue) {
    state = {...state, isLost: true, isWorkerDue, isTaken};
    return show(state);
  }
  say(`The head has not answered since ${at}, ${duration(age)} ago. What you see is from then.`);
}

/** Say how old is what was read of run directories. */
function tickKept() {
  const age = seconds(heard), isLate = age > LOST_SECONDS + (isList() ? SLOW_SECONDS : 0) && seconds(asked) > LOST_SECONDS;
  by("updated").textContent = state?.outcome ? "read from the run's directory" : `read from the run's directory ${duration(age)} ago`;
  if (!isLate || document.hidden) return;
  say(troubled ? `The run cannot be read: ${troubled}.` : "Nobody answers any more: open the page by a new link of rollcall open.");
}

/** Say that another run, or this one with another token, answers here: the head is not lost. */
function sayRefused() {
  const since = state ? ` What you see is from ${clock(state.at)}.` : "";
  by("state").className = "chip bad";
  by("state").textContent = "Key refused";
  by("state").dataset.mark = "✕";
  by("verdict").className = "bad";
  by("verdict").textContent = "Open the page by a new link: rollcall open.";
  document.title = "✕ Key refused";
  say(`A head answers, but this page's key does not open its run.${since} Open the page by a new link: rollcall open.`);
}

/** Show a banner. Its text changes only with its sense: a screen reader reads each change. */
function say(sentence) {
  const sense = sentence.replace(/, [^,]* ago/, "");
  if (by("lost").hidden || by("lost").dataset.sense !== sense) by("lost").textContent = sense;
  by("lost").dataset.sense = sense;
  by("lost").hidden = false;
}

/** The button of a run or job that nobody has asked to stop. */
function offerStop() {
  by("stop").disabled = false;
  by("stop").textContent = "Save and stop…";
}

by("stop").addEventListener("click", () => {
  confirmed = shownJob; // another one may run before the answer
  by("confirm-title").textContent = `Stop ${confirmed ?? "the run"}?`;
  by("confirm-text").textContent = confirmed
    ? "The job saves a checkpoint and stops. The cluster stays up."
    : "The run saves a checkpoint, and all nodes end. Started again, it resumes from there.";
  by("confirm").returnValue = "";
  by("confirm").showModal();
});
by("confirm").addEventListener("close", async () => {
  if (by("confirm").returnValue !== "yes") return;
  const job = confirmed;
  const path = job ? `v1/jobs/${encodeURIComponent(job)}/stop` : "v1/stop";
  by("stop").disabled = job === shownJob;
  const answer = await ask(path, {method: "POST"}).catch(() => null);
  if (job !== shownJob) return;
  by("stop").disabled = answer?.ok;
  by("stop").textContent = answer?.ok ? "It saves and stops" : "The head did not take the stop: try again";
});
by("filter").addEventListener("input", () => whole && showNodes(whole));
by("routine").addEventListener("change", () => listen(shownJob));
by("back").addEventListener("click", click => {
  click.preventDefault();
  location.hash = addressWith("run"); // what else is in the address stays
});
addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", () => {
  asked = performance.now();
  refresh();
});
smoothing.set(weightOf(inAddress().get("smoothing")));
refresh();
setInterval(refresh, 1000 * POLL_SECONDS);
setInterval(tick, 1000);
