// A browser's document, as far as the page needs one: node dom.js PAGE.html EXPRESSION prints the value as JSON.
"use strict";
const fs = require("fs");
const vm = require("vm");

class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.attributes = {}; this.listeners = {}; this.words = []; this.value = ""; this.clientWidth = 1000; }
  appendChild(child) { child.parentNode = this; this.children.push(child); return child; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(kind, action) { (this.listeners[kind] ||= []).push(action); }
  fire(kind, event) { for (const action of this.listeners[kind] || []) action({preventDefault() {}, ...event}); }
  set innerHTML(_) { throw new Error("markup was made of text"); }
  set textContent(text) { this.children = text === "" ? [] : [{text: String(text), children: []}]; }
  get textContent() { return this.text ?? this.children.map(child => child.text ?? child.textContent).join(""); }
  all(tag) { return this.children.flatMap(child => [...(child.tag === tag ? [child] : []), ...(child.all ? child.all(tag) : [])]); }
  getContext() {
    const canvas = this, known = {
      createImageData: (wide, high) => ({data: new Uint8ClampedArray(4 * wide * high), wide, high}),
      putImageData: image => { canvas.image = image; },
      drawImage: picture => { canvas.drawn = picture; },
      fillText: text => canvas.words.push(text),
    };
    return new Proxy({}, {get: (_, name) => known[name] || (() => {}), set: () => true});
  }
}

const text = fs.readFileSync(process.argv[2], "utf8");
const ids = {}, roots = [...text.matchAll(/ id="([\w-]+)"/g)].map(match => match[1]);
for (const id of roots) ids[id] = new Element("div");
ids.data.textContent = text.match(/<script type="application\/json" id="data">([^]*?)<\/script>/)[1];
const script = text.match(/<script>([^]*?)<\/script>/)[1];
const document = {
  createElement: tag => new Element(tag),
  createTextNode: words => ({text: words, children: []}),
  getElementById: id => ids[id],
  documentElement: new Element("html"),
  body: new Element("body"),
};
const style = () => ({getPropertyValue: () => "", color: "black"});
const world = {document, getComputedStyle: style, matchMedia: () => ({matches: false}), atob, console, ids};
world.globalThis = world;
vm.createContext(world);
vm.runInContext(script, world);
console.log(JSON.stringify(vm.runInContext(process.argv[3], world), (_, value) =>
  typeof value === "number" && !Number.isFinite(value) ? String(value) : value));
